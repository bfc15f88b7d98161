package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// A child process of these tests finds its work in childEnv and its folder in folderEnv.
const childEnv, folderEnv = "REBOUND_CONFINE_CHILD", "REBOUND_CONFINE_FOLDER"

// childWork is what a child process does in its folder.
var childWork = map[string]func(folder string){
	"confined":     func(folder string) { child(folder, true) },
	"not confined": func(folder string) { child(folder, false) },
	"confined without CAP_SETPCAP and CAP_SETUID": func(folder string) {
		giveUp(unix.CAP_SETPCAP, unix.CAP_SETUID)
		child(folder, true)
	},
	"devices":                   func(folder string) { childWithDevices(folder, true) },
	"devices, all system calls": func(folder string) { childWithDevices(folder, false) },
}

func TestMain(m *testing.M) {
	if work := os.Getenv(childEnv); work != "" {
		childWork[work](os.Getenv(folderEnv))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childProcess is this program as a child.
func childProcess(work, folder string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+work, folderEnv+"="+folder)
	c.Stderr = os.Stderr
	return c
}

// result is the result of a child process.
type result struct {
	Holds   []string
	Errs    map[string]string // by attempt; empty if it succeeded
	Cannot  string            // why the process cannot become nobody
	Threads []string          // of each: NoNewPrivs, Seccomp, CapEff

	Speculation []string // of the first thread, before and after: the kernel's report
}

// attempts must all fail once confined. Root could do most of them.
func attempts(folder string) map[string]func() error {
	errno := func(e syscall.Errno) error {
		if e != 0 {
			return e
		}
		return nil
	}
	open := func(name string, flags int) error { return check.Err(unix.Open(name, flags, 0o600)) }
	socket := func(family, kind, protocol int) func() error {
		return func() error { return check.Err(unix.Socket(family, kind, protocol)) }
	}
	call := func(number uintptr, a ...uintptr) func() error {
		var all [6]uintptr
		copy(all[:], a)
		return func() error {
			_, _, e := unix.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5])
			return errno(e)
		}
	}
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	return map[string]func() error{
		"read a file elsewhere":        func() error { return open("/etc/passwd", unix.O_RDONLY) },
		"list a folder elsewhere":      func() error { _, err := os.ReadDir("/etc"); return err },
		"write where reading is meant": func() error { return open(filepath.Join(folder, "read", "x"), unix.O_WRONLY) },
		"make a file elsewhere":        func() error { return open(filepath.Join(folder, "new"), unix.O_CREAT|unix.O_WRONLY) },
		"remove a file elsewhere":      func() error { return os.Remove(filepath.Join(folder, "read", "victim")) },
		"run a program":                func() error { return exec.Command("/bin/true").Run() },
		"fork":                         func() error { _, err := syscall.ForkExec("/bin/true", []string{"true"}, nil); return err },
		"mount":                        func() error { return unix.Mount("tmpfs", filepath.Join(folder, "read"), "tmpfs", 0, "") },
		"trace a process":              func() error { return unix.PtraceSeize(os.Getppid()) },
		"read another's memory":        call(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid())),
		"signal another":               func() error { return unix.Kill(os.Getppid(), 0) },
		"open a packet socket":         socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"open a raw IP socket":         socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"open an AF_XDP socket":        socket(unix.AF_XDP, unix.SOCK_RAW, 0),
		"connect by TCP":               func() error { _, err := net.DialTimeout("tcp", listener.Addr().String(), time.Minute); return err },
		"make a BPF map":               call(unix.SYS_BPF, unix.BPF_MAP_CREATE),
		"load a BPF program":           call(unix.SYS_BPF, unix.BPF_PROG_LOAD),
		"leave a namespace":            func() error { return unix.Unshare(unix.CLONE_NEWNET) },
		"change the root":              func() error { return unix.Chroot(folder) },
		"set the clock":                call(unix.SYS_SETTIMEOFDAY, 1),
		"load a module":                call(unix.SYS_INIT_MODULE),
		"watch events":                 call(unix.SYS_PERF_EVENT_OPEN),
		"open by a handle":             call(unix.SYS_OPEN_BY_HANDLE_AT),
		"use io_uring":                 call(unix.SYS_IO_URING_SETUP, 1),
		"catch page faults":            call(unix.SYS_USERFAULTFD),
		"make memory a program": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		},
		"get capabilities back": func() error {
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_RAW, Permitted: 1 << unix.CAP_NET_RAW}}
			_, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(
				unsafe.Pointer(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3})),
				uintptr(unsafe.Pointer(&data)), 0)
			return errno(e)
		},
	}
}

func child(folder string, confined bool) {
	n := Needs{Read: []string{filepath.Join(folder, "read"), filepath.Join(folder, "missing"), "/proc/self/task"},
		Write: []string{filepath.Join(folder, "write")}}
	all := attempts(folder)
	var r result
	r.Errs = map[string]string{}

	// A thread that existed before, and only waits.
	work, done := make(chan func()), make(chan bool)
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
			done <- true
		}
	}()
	onThread := func(f func()) { work <- f; <-done }
	onThread(func() {})

	r.Speculation = append(r.Speculation, speculation())
	if err := nobody.Cannot(); err != nil {
		r.Cannot = err.Error()
	}
	if confined {
		for _, h := range Apply(n) {
			r.Holds = append(r.Holds, h.String())
		}
	}
	r.Speculation = append(r.Speculation, speculation())
	note := func(name string, err error) {
		var e syscall.Errno
		switch {
		case err == nil:
			r.Errs[name] = ""
		case errors.As(err, &e) && e != unix.EPERM && e != unix.EACCES:
			r.Errs[name] = "but not by us: " + err.Error()
		default:
			r.Errs[name] = err.Error()
		}
	}
	// these change the results of others
	last := []string{"set the clock", "leave a namespace", "change the root", "get capabilities back"}
	for name, try := range all {
		if !slices.Contains(last, name) {
			note(name, try())
		}
	}
	onThread(func() { note("read a file elsewhere, in a thread from before", all["read a file elsewhere"]()) })
	onThread(func() { note("open a packet socket, in a thread from before", all["open a packet socket"]()) })

	// Still allowed: threads, garbage collections, files, the metrics page's type of socket.
	_, err := os.ReadFile(filepath.Join(folder, "read", "x"))
	note("ok: read", err)
	note("ok: write", os.WriteFile(filepath.Join(folder, "write", "y"), []byte("y"), 0o600))
	note("ok: folder", os.MkdirAll(filepath.Join(folder, "write", "a", "b"), 0o700))
	note("ok: rename", os.Rename(filepath.Join(folder, "write", "y"), filepath.Join(folder, "write", "a", "y")))
	var wait, all20 sync.WaitGroup
	all20.Add(20)
	for range 20 {
		wait.Go(func() {
			runtime.LockOSThread() // one thread each, which exits afterwards
			b := make([]byte, 1<<20)
			runtime.GC()
			all20.Done()
			all20.Wait() // so that all threads exist at once
			runtime.KeepAlive(b)
		})
	}
	wait.Wait()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	unix.Close(fd)
	note("ok: netlink", err)

	tasks, err := os.ReadDir("/proc/self/task")
	note("ok: tasks", err)
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // one of those above, which ends when its goroutine has ended
		}
		var line []string
		for l := range strings.Lines(string(b)) {
			if f := strings.Fields(l); len(f) == 2 && slices.Contains(
				[]string{"NoNewPrivs:", "Seccomp:", "CapEff:", "CapPrm:", "CapBnd:"}, f[0]) {
				line = append(line, f[0]+f[1])
			}
		}
		r.Threads = append(r.Threads, strings.Join(line, " "))
	}
	for _, name := range last {
		note(name, all[name]())
	}
	json.NewEncoder(os.Stdout).Encode(r)
}

func speculation() (s string) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", os.Getpid()))
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "Speculation") {
			s += l
		}
	}
	return s
}

func runChild(t *testing.T, work string) (r result) {
	t.Helper()
	folder := t.TempDir()
	for _, d := range []string{"read", "write"} {
		must.OK(t, os.Mkdir(filepath.Join(folder, d), 0o700))
	}
	for _, f := range []string{"x", "victim"} {
		must.OK(t, os.WriteFile(filepath.Join(folder, "read", f), []byte("x"), 0o600))
	}
	cmd := childProcess(work, folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS} // its mounts are private and end with it
	must.OK(t, json.Unmarshal(must.Get(cmd.Output())(t), &r))
	return r
}

// Once confined, no thread can do what an attacker needs, and the responder's own work continues.
func TestConfined(t *testing.T) {
	needs.Root(t, "dropping privileges")
	r := runChild(t, "confined")
	for _, h := range r.Holds {
		t.Log(h)
		if strings.Contains(h, "not in force") {
			if strings.Contains(h, errNone.Error()) {
				t.Skip(h)
			}
			t.Error(h)
		}
	}
	for name, err := range r.Errs {
		switch good := strings.HasPrefix(name, "ok: "); {
		case good && err != "":
			t.Errorf("%s: %s", name, err)
		case !good && err == "":
			t.Errorf("%s: it can", name)
		case !good && strings.HasPrefix(err, "but not by us"):
			t.Errorf("%s: refused, %s", name, err)
		}
	}
	kept := "0000000000000000"
	if !unlimited() {
		kept = fmt.Sprintf("%016x", 1<<IPCLock)
	}
	want := "CapPrm:" + kept + " CapEff:" + kept + " CapBnd:" + kept + " NoNewPrivs:1 Seccomp:2"
	for _, th := range r.Threads {
		if th != want {
			t.Errorf("a thread has %q, want %q", th, want)
		}
	}
	if len(r.Threads) < 3 {
		t.Errorf("%d threads were looked at", len(r.Threads))
	}
	// A filter without SPEC_ALLOW changes this before Linux 5.16, and with spec_store_bypass_disable=seccomp.
	if s := r.Speculation; s[0] != s[1] {
		t.Errorf("the filter changes what may be speculated on, and slows the loops down: from\n%sto\n%s", s[0], s[1])
	}
}

func giveUp(list ...Capability) {
	all, err := effective()
	if err != nil {
		panic(err)
	}
	for _, c := range list {
		all[c/32].Effective &^= 1 << (c % 32)
		all[c/32].Permitted &^= 1 << (c % 32)
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(all))); err != nil {
		panic(err)
	}
}

// A process without the right to change its bounding set or its user keeps them, and reports that.
func TestWithoutRights(t *testing.T) {
	needs.Root(t, "dropping privileges")
	r := runChild(t, "confined without CAP_SETPCAP and CAP_SETUID")
	if all := strings.Join(r.Holds, "\n"); !strings.Contains(all, "the bounding set keeps") ||
		!strings.Contains(all, "CAP_SETPCAP") {
		t.Errorf("nothing says that the bounding set stays:\n%s", all)
	}
	for _, th := range r.Threads {
		if strings.Contains(th, "CapBnd:0000000000000000") {
			t.Errorf("the bounding set did not stay: %s", th)
		}
	}
	if !strings.Contains(r.Cannot, "CAP_SETUID") {
		t.Errorf("it cannot become nobody: %q, want the reason CAP_SETUID", r.Cannot)
	}
	if r := runChild(t, "not confined"); r.Cannot != "" {
		t.Errorf("it cannot become nobody with all rights: %s", r.Cannot)
	}
}

func TestMapped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uid_map")
	for _, c := range []struct {
		text string
		id   int
		want bool
	}{
		{"         0          0 4294967295\n", 65534, true},
		{"0 1000 1\n", 65534, false},
		{"0 1000 1\n1 100000 65536\n", 65534, true},
		{"0 100000 65534\n", 65534, false},
		{"0 100000 65535\n", 65534, true},
		{"1000 100000 10\n", 1009, true},
		{"1000 100000 10\n", 1010, false},
	} {
		must.OK(t, os.WriteFile(file, []byte(c.text), 0o600))
		if got := mapped(file, c.id); got != c.want {
			t.Errorf("%q maps %d: %v, want %v", c.text, c.id, got, c.want)
		}
	}
}

func TestFindUser(t *testing.T) {
	for _, c := range []struct {
		name string
		want User
		err  string
	}{
		{"4000111222", User{}, "not a user"},
		{"400011122", User{"", 400011122, 400011122}, ""},
		{"no such user", User{}, "not a user"},
		{"0", User{}, "unprivileged"},
		{"root", User{}, "unprivileged"},
		{"-1", User{}, "not a user"},
	} {
		got, err := FindUser(c.name)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v and %v, want %v and %q", c.name, got, err, c.want, c.err)
		}
	}
	if u, err := FindUser(""); err != nil || u.UID == 0 || u.GID == 0 {
		t.Errorf("the default user is %v: %v", u, err)
	}
}

// The calls that a socket driver makes for each reply are allowed by number alone. The kernel (seccomp_is_const_allow)
// then caches the result and does not run the filter. It emulates only loads of the number and of the architecture.
func TestLoopsPassByNumber(t *testing.T) {
	info := must.Get(arch.GetInfo(""))(t)
	for _, n := range []Needs{{}, {Write: []string{"/x"}, BPF: true, Priority: true}} {
		p := must.Get(n.policy())(t)
		code := must.Get(p.Assemble())(t)
		program := must.Get(bpf.Assemble(code))(t)
		for _, name := range loops {
			if number, ok := info.SyscallNames[name]; ok && !constant(program, uint32(number), uint32(info.ID)) {
				t.Errorf("%s: the filter looks at more than its number", name)
			}
		}
		for _, name := range []string{"clone", "socket", "mmap", "execve", "ptrace"} {
			if number, ok := info.SyscallNames[name]; ok && constant(program, uint32(number), uint32(info.ID)) {
				t.Errorf("%s passes whatever its arguments", name)
			}
		}
		if number := info.SyscallNames[loops[0]]; constant(program, uint32(number), uint32(info.ID)+1) {
			t.Errorf("%s passes on another architecture", loops[0])
		}
	}
}

func constant(program []bpf.RawInstruction, number, architecture uint32) bool {
	var a uint32
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		jump := func(taken bool) {
			if taken {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		}
		switch i.Op {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch i.K {
			case 0:
				a = number
			case 4:
				a = architecture
			default:
				return false
			}
		case unix.BPF_RET | unix.BPF_K:
			return i.K == unix.SECCOMP_RET_ALLOW
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= i.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&i.K != 0)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
		default:
			return false
		}
	}
	return false
}

// Without confinement the same attempts succeed for root, or fail for another reason than permission, so the test above
// can fail.
func TestFree(t *testing.T) {
	needs.Root(t, "dropping privileges")
	r := runChild(t, "not confined")
	refused := 0
	for name, err := range r.Errs {
		if err != "" && !strings.HasPrefix(err, "but not by us") {
			refused++
			t.Logf("%s: %s", name, err)
		}
	}
	if refused > 4 { // refused in the tests' container, too
		t.Errorf("%d attempts are refused to one that is free", refused)
	}
}

// Every name is a system call, and on both architectures the calls with which the runtime waits and allocates are
// included.
func TestNames(t *testing.T) {
	amd64 := must.Get(arch.GetInfo("amd64"))(t)
	arm64 := must.Get(arch.GetInfo("arm64"))(t)
	for _, name := range slices.Concat(loops, rt, reading, writing, sockets, devices, clocks) {
		_, a := amd64.SyscallNames[name]
		_, b := arm64.SyscallNames[name]
		if !a && !b {
			t.Errorf("%s is no system call", name)
		}
	}
	for _, name := range []string{"futex", "nanosleep", "epoll_pwait", "munmap", "read", "write", "rt_sigreturn",
		"exit_group"} {
		if _, ok := arm64.SyscallNames[name]; !ok || !slices.Contains(rt, name) {
			t.Errorf("arm64: %s is missing", name)
		}
	}
}
