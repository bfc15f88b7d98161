package confine

import (
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is an unprivileged user that the process can change to.
type User struct {
	Name     string // empty if the machine has no name for it
	UID, GID int
}

// nobody is the user without rights on every Linux system (kernel.overflowuid).
var nobody = User{"nobody", 65534, 65534}

// FindUser returns a user by name or number. An empty name is user "rebound", or nobody if that does not exist.
func FindUser(name string) (User, error) {
	want := name
	if name == "" {
		want = "rebound"
	}
	u, err := user.Lookup(want)
	number, bad := strconv.ParseUint(name, 10, 31)
	if err != nil && bad == nil {
		if u, err = user.LookupId(want); err != nil {
			u, err = &user.User{Uid: want, Gid: strconv.FormatUint(number, 10)}, nil
		}
	}
	if err != nil && name == "" {
		return nobody, nil
	} else if err != nil {
		return User{}, fmt.Errorf("%q is not a user of this machine (want auto, root, a name or a number)", name)
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err != nil || err2 != nil || uid == 0 || gid == 0 {
		return User{}, fmt.Errorf("user %s has uid %s and gid %s: want an unprivileged user", want, u.Uid, u.Gid)
	}
	return User{u.Username, uid, gid}, nil
}

func (u User) String() string {
	if u.Name == "" {
		return fmt.Sprintf("uid %d, gid %d", u.UID, u.GID)
	}
	return fmt.Sprintf("uid %d (%s), gid %d", u.UID, u.Name, u.GID)
}

// Cannot returns why this process cannot change to the user, nil if it can.
func (u User) Cannot() error {
	deny, _ := os.ReadFile("/proc/self/setgroups")
	switch all, err := effective(); {
	case err != nil:
		return err
	case !all.has(unix.CAP_SETUID) || !all.has(unix.CAP_SETGID):
		return fmt.Errorf("the process lacks CAP_SETUID or CAP_SETGID")
	case !all.has(unix.CAP_SETPCAP) && !unlimited():
		return fmt.Errorf("the process lacks CAP_SETPCAP, and the limit of locked memory (RLIMIT_MEMLOCK) cannot be lifted")
	case !mapped("/proc/self/uid_map", u.UID) || !mapped("/proc/self/gid_map", u.GID):
		return fmt.Errorf("this user namespace has no uid %d and gid %d", u.UID, u.GID)
	case strings.TrimSpace(string(deny)) == "deny":
		return fmt.Errorf("this user namespace denies setgroups")
	}
	return nil
}

// mapped reports whether a user namespace has an ID (user_namespaces(7)).
func mapped(file string, id int) bool {
	b, err := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil && id >= inside && id-inside < count {
			return true
		}
	}
	return err != nil // without /proc, the system calls decide
}

// secbitNoSetuidFixup keeps the capabilities when the user changes (capabilities(7), linux/securebits.h).
const secbitNoSetuidFixup = 1 << 2

// Become changes the user of all threads and drops all supplementary groups. Capabilities stay until Apply. The parent
// death signal stays as well; if the parent has died meanwhile, the process gets it at once. On error the user is
// unchanged.
func Become(u User) error {
	// The number of threads is limited by user, except for uid 0.
	unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	// The change clears the effective capabilities for a moment. With all memory locked the runtime cannot grow then,
	// and the process could crash. So either lift the limit on locked memory, or keep the capabilities.
	if !unlimited() {
		if err := everyThread(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secbitNoSetuidFixup); err != nil {
			return fmt.Errorf("change to %v: the limit of locked memory (RLIMIT_MEMLOCK) cannot be lifted, and neither can capabilities be kept "+
				"(PR_SET_SECUREBITS): %w", u, err)
		}
	}
	id, group := uintptr(u.UID), uintptr(u.GID)
	for _, c := range []struct {
		name      string
		call      uintptr
		arguments []uintptr
	}{
		{"PR_SET_KEEPCAPS", unix.SYS_PRCTL, []uintptr{unix.PR_SET_KEEPCAPS, 1}},
		{"setgroups", unix.SYS_SETGROUPS, []uintptr{0, 0}},
		{"setresgid", unix.SYS_SETRESGID, []uintptr{group, group, group}},
		{"setresuid", unix.SYS_SETRESUID, []uintptr{id, id, id}},
		{"PR_SET_KEEPCAPS", unix.SYS_PRCTL, []uintptr{unix.PR_SET_KEEPCAPS, 0}},
	} {
		if err := everyThread(c.call, c.arguments...); err != nil {
			return fmt.Errorf("change to %v: %s: %w", u, c.name, err)
		}
	}
	// The change cleared the effective capabilities.
	header, data := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, new(sets)
	if err := unix.Capget(header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	if err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data))); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return atStart.restore()
}

// parentDeath is the parent death signal of a process (PR_SET_PDEATHSIG(2const)).
type parentDeath struct {
	signal int32 // 0 for none
	parent int
}

// atStart is read on the first thread, where package initialization runs: after execve that thread has the request of
// the process that started this one.
var atStart = func() (p parentDeath) {
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&p.signal)), 0, 0, 0); err != nil {
		return parentDeath{}
	}
	p.parent = os.Getppid()
	return p
}()

// restore requests the signal again, because Linux forgets it when a thread changes its user. The request belongs to a
// thread and ends with it, so it is made on a thread that does not exit.
func (p parentDeath) restore() error {
	if p.signal == 0 {
		return nil
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(p.signal), 0, 0, 0)
		select {}
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("PR_SET_PDEATHSIG: %w", err)
	}
	if os.Getppid() != p.parent {
		return unix.Kill(os.Getpid(), unix.Signal(p.signal))
	}
	return nil
}
