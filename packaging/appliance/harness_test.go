package appliance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const root = "../.."

// goRun runs a go command in a folder. Exit status 3 of the builder skips the test.
func goRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if strings.Contains(failed.String(), "exit status 3") {
		t.Skip(failed.String())
	}
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, failed.String())
	}
	return strings.TrimSpace(string(out))
}

var (
	building sync.Mutex
	images   = map[string]string{}
)

// image builds the image, once for the same flags, and returns its folder.
func image(t *testing.T, flags ...string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	key := strings.Join(flags, " ")
	if dir := images[key]; dir != "" {
		return dir
	}
	dir := must.Get(filepath.Abs(filepath.Join(root, "out", "appliance-test", fmt.Sprint(len(images)))))(t)
	goRun(t, ".", append([]string{"run", "./image", "-out", dir}, flags...)...)
	images[key] = dir
	return dir
}

// emulation returns words for guests on a busy machine, whose kernels else measure a wrong rate of the time stamp
// counter: see proof/lab's qemu.go. SysRq's keys kill the responder and panic the kernel.
func emulation(t *testing.T) string {
	t.Helper()
	c := must.Get(latency.NewClock())(t)
	return fmt.Sprintf("no_timer_check tsc=reliable tsc_early_khz=%d sysrq_always_enabled",
		int64(math.Round(c.Info().Frequency/1e6))*1e3)
}

// guestImage is image for a guest.
func guestImage(t *testing.T) string { return image(t, "-append", emulation(t)) }

// kit are the programs that guests need.
type kit struct{ qemu, code, vars, bench, simnic, ipxe string }

// theKit returns the programs: QEMU from the lab's cache, OVMF from Debian, and ours.
var theKit = sync.OnceValues(func() (k kit, err error) {
	cache := filepath.Join(root, ".cache", "lab")
	if x := os.Getenv("XDG_CACHE_HOME"); x != "" {
		cache = filepath.Join(x, "rebound", "lab")
	}
	k.qemu = filepath.Join(cache, "qemu")
	if _, err := os.Stat(k.qemu); err != nil {
		return k, fmt.Errorf("the lab's QEMU is missing (run make lab-smoke): %w", err)
	}
	k.ipxe = filepath.Join(cache, "root/usr/lib/ipxe/ipxe.efi")
	out, err := exec.Command("go", "run", "./image", "-fetch", "ovmf").Output()
	if err != nil {
		return k, fmt.Errorf("fetch ovmf: %w", err)
	}
	dir := filepath.Join(root, ".cache", "appliance", "ovmf")
	if b, err := exec.Command("dpkg-deb", "-x", strings.TrimSpace(string(out)), dir).CombinedOutput(); err != nil {
		return k, fmt.Errorf("unpack ovmf: %w\n%s", err, b)
	}
	k.code, k.vars = filepath.Join(dir, "usr/share/OVMF/OVMF_CODE_4M.fd"),
		filepath.Join(dir, "usr/share/OVMF/OVMF_VARS_4M.fd")
	bin, err := filepath.Abs(filepath.Join(root, "out", "appliance-test", "bin"))
	if err != nil {
		return k, err
	}
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/bench", "./cmd/simnic")
	build.Dir = root
	if b, err := build.CombinedOutput(); err != nil {
		return k, fmt.Errorf("%w\n%s", err, b)
	}
	k.bench, k.simnic = filepath.Join(bin, "bench"), filepath.Join(bin, "simnic")
	return k, nil
})

// guests skips the test where no guest can boot, and returns what it takes.
func guests(t *testing.T) kit {
	t.Helper()
	needs.Long(t)
	k, err := theKit()
	if err != nil {
		t.Skip(err)
	}
	return k
}

// disk copies the image and changes files on its FAT file system. An empty body removes a file.
func disk(t *testing.T, from string, files map[string]string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "disk.img")
	must.OK(t, os.WriteFile(to, must.Get(os.ReadFile(from))(t), 0o644))
	for name, body := range files {
		if body == "" {
			mtool(t, to, "mdel", "::"+name)
			continue
		}
		file := filepath.Join(t.TempDir(), "file")
		must.OK(t, os.WriteFile(file, []byte(body), 0o644))
		mtool(t, to, "mcopy", "-o", file, "::"+name)
	}
	return to
}

// mtool runs one of the mtools on the disk's partition, and returns its output.
func mtool(t *testing.T, disk, name string, args ...string) string {
	t.Helper()
	needs.Programs(t, name)
	out, err := exec.Command(name, append([]string{"-i", disk + "@@1M"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// names returns the names of the files in a folder of the disk.
func names(t *testing.T, disk, folder string) (all []string) {
	t.Helper()
	for line := range strings.Lines(mtool(t, disk, "mdir", "-b", "::"+folder)) {
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, "/") {
			all = append(all, filepath.Base(line))
		}
	}
	return all
}

// fsck checks the disk's file system: nothing is wrong, and it was unmounted.
func fsck(t *testing.T, disk string) {
	t.Helper()
	needs.Programs(t, "fsck.fat")
	b := must.Get(os.ReadFile(disk))(t)
	const start = 1 << 20
	part := filepath.Join(t.TempDir(), "part")
	must.OK(t, os.WriteFile(part, b[start:len(b)-start+512], 0o644))
	if out, err := exec.Command("fsck.fat", "-n", part).CombinedOutput(); err != nil ||
		bytes.Contains(out, []byte("irty")) {
		t.Errorf("fsck.fat: %v\n%s", err, out)
	}
}

// models are two device models on one wire, served to QEMU and to the bench.
type models struct {
	sockets []string
	cmd     *exec.Cmd
	said    *bytes.Buffer
}

func serve(t *testing.T, k kit, model string, n int) *models {
	t.Helper()
	return serveOn(t, k, model, n, "pair")
}

func serveOn(t *testing.T, k kit, model string, n int, wire string, more ...string) *models {
	t.Helper()
	dir := t.TempDir()
	m := &models{said: &bytes.Buffer{}}
	args := more
	for i := range n {
		m.sockets = append(m.sockets, filepath.Join(dir, fmt.Sprint("s", i)))
		args = append(args, "-model", model, "-socket", m.sockets[i])
	}
	m.cmd = exec.Command(k.simnic, append(args, "-wire", wire, "-counts")...)
	m.cmd.Stdout, m.cmd.Stderr = m.said, m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(t, m.cmd.Start())
	t.Cleanup(func() {
		m.cmd.Process.Signal(syscall.SIGTERM)
		if err := m.cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("models: %v\n%s", err, m.said)
		}
	})
	until(t, 20*time.Second, "the models' sockets", func() bool {
		_, err := os.Stat(m.sockets[n-1])
		return err == nil
	})
	return m
}

// until waits for a condition.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// machine is a guest to be booted.
type machine struct {
	disk     string   // the drive's option file=; empty for none
	readOnly bool     // the drive is
	usb      bool     // it is a stick, otherwise virtio
	sockets  []string // of device models
	noIOMMU  bool
	reboots  bool   // the guest may restart
	netdev   string // of the management interface; empty for QEMU's user network
	noNIC    bool
	more     []string
}

// guest is a running one.
type guest struct {
	t       *testing.T
	dir     string
	port    int // of this host, for the pages
	cmd     *exec.Cmd
	qmp     *bufio.Reader
	control net.Conn
	keys    net.Conn // of the serial console
	ended   chan struct{}
	sticks  int    // that were plugged in after the first one
	host    string // of the pages; empty for port
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// limitOfBoot is generous: guests are emulated.
const limitOfBoot = 5 * time.Minute

// until waits for what the guest has to do. On a busy machine the guest gets little of a CPU: the limit is then its CPU
// time.
func (g *guest) until(what string, ok func() bool) {
	g.t.Helper()
	began, used := time.Now(), g.cpu()
	for ; !ok(); time.Sleep(100 * time.Millisecond) {
		select {
		case <-g.ended:
			g.t.Fatalf("QEMU ended before %s", what)
		default:
		}
		waited, had := time.Since(began), g.cpu()-used
		if waited > 6*limitOfBoot || waited > limitOfBoot && had > limitOfBoot {
			g.t.Fatalf("not within %v, of which the guest had %v of CPU time: %s", waited.Round(time.Second),
				had.Round(time.Second), what)
		}
	}
}

// cpu returns the CPU time of QEMU, which is utime and stime of proc_pid_stat(5), in hundredths of a second; 0 when
// QEMU has ended.
func (g *guest) cpu() time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func boot(t *testing.T, k kit, m machine) *guest {
	t.Helper()
	g := &guest{t: t, dir: t.TempDir(), ended: make(chan struct{})}
	vars := filepath.Join(g.dir, "vars.fd")
	must.OK(t, os.WriteFile(vars, must.Get(os.ReadFile(k.vars))(t), 0o644))
	args := []string{"-M", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m",
		"1G", "-nodefaults", "-display", "none",
		"-object", "memory-backend-memfd,id=ram,size=1G,share=on", "-machine", "memory-backend=ram",
		"-drive", "if=pflash,format=raw,readonly=on,file=" + k.code, "-drive", "if=pflash,format=raw,file=" + vars,
		"-chardev", "socket,id=serial,server=on,wait=off,path=" + filepath.Join(g.dir, "serial") + ",logfile=" +
			filepath.Join(g.dir, "console"), "-serial", "chardev:serial",
		"-qmp", "unix:" + filepath.Join(g.dir, "qmp") + ",server=on,wait=off",
		"-device", "qemu-xhci,id=xhci,addr=0x10"}
	if !m.noIOMMU {
		args = append(args, "-device", "intel-iommu,intremap=on,caching-mode=on")
	}
	if !m.reboots {
		args = append(args, "-no-reboot")
	}
	if m.disk != "" {
		drive := "if=none,id=stick,format=raw,file=" + m.disk
		if m.readOnly {
			drive += ",readonly=on"
		}
		device := "virtio-blk-pci,id=plug,drive=stick,bootindex=0,addr=0x11"
		if m.usb {
			device = "usb-storage,id=plug,bus=xhci.0,drive=stick,bootindex=0,removable=on"
		}
		args = append(args, "-drive", drive, "-device", device)
	}
	switch {
	case m.noNIC:
	case m.netdev != "":
		args = append(args, "-netdev", m.netdev, "-device", "virtio-net-pci,id=nic,netdev=m,romfile=,addr=0x12")
	default:
		g.port = freePort(t)
		args = append(args, "-netdev", fmt.Sprintf("user,id=m,hostfwd=tcp:127.0.0.1:%d-:9469", g.port), "-device",
			"virtio-net-pci,id=nic,netdev=m,romfile=,addr=0x12")
	}
	for i, s := range m.sockets {
		args = append(args, "-device",
			fmt.Sprintf("pcie-root-port,id=rp%d,chassis=%d,addr=%#x,hotplug=off,power_controller_present=off,mem-reserve=8M,pref64-reserve=64M", i, i+1, 4+i),
			"-device", fmt.Sprintf(`{"driver":"vfio-user-pci","rombar":0,"socket":{"type":"unix","path":%q},"bus":"rp%d"}`, s, i))
	}
	g.cmd = exec.Command(k.qemu, append(args, m.more...)...)
	log := must.Get(os.Create(filepath.Join(g.dir, "qemu.log")))(t)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(t, g.cmd.Start())
	go func() {
		g.cmd.Wait()
		log.Close()
		close(g.ended)
	}()
	t.Cleanup(func() {
		g.cmd.Process.Kill()
		<-g.ended
		if t.Failed() {
			t.Logf("console:\n%s\nQEMU: %s", g.console(), must.Get(os.ReadFile(filepath.Join(g.dir, "qemu.log")))(t))
		}
	})
	return g
}

// freePort returns a TCP port that was free.
func freePort(t *testing.T) int {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// console returns what the serial console has shown, without what is not printable.
func (g *guest) console() string {
	b, _ := os.ReadFile(filepath.Join(g.dir, "console"))
	return string(b)
}

// says waits until the console has shown a text n times, and returns the last line with it.
func (g *guest) says(text string, n int) (line string) {
	g.t.Helper()
	g.until(fmt.Sprintf("the console shows %q %d times", text, n), func() (whole bool) {
		shown := g.console()
		if strings.Count(shown, text) < n {
			return false
		}
		line, _, whole = strings.Cut(shown[strings.LastIndex(shown, text):], "\n")
		return whole
	})
	return strings.TrimSpace(line)
}

// execute runs a command of QEMU's monitor protocol.
func (g *guest) execute(command string, arguments map[string]any) {
	g.t.Helper()
	if g.control == nil {
		g.control = must.Get(net.Dial("unix", filepath.Join(g.dir, "qmp")))(g.t)
		g.t.Cleanup(func() { g.control.Close() })
		g.qmp = bufio.NewReader(g.control)
		must.Get(g.qmp.ReadString('\n'))(g.t)
		g.execute("qmp_capabilities", nil)
	}
	if arguments == nil {
		arguments = map[string]any{}
	}
	must.OK(g.t, json.NewEncoder(g.control).Encode(map[string]any{"execute": command, "arguments": arguments}))
	for {
		line := must.Get(g.qmp.ReadString('\n'))(g.t)
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct{ Desc string }
		}
		must.OK(g.t, json.Unmarshal([]byte(line), &reply))
		if reply.Error != nil {
			g.t.Fatalf("QEMU: %s: %s", command, reply.Error.Desc)
		}
		if reply.Return != nil {
			return
		}
	}
}

// sysrq presses Alt, SysRq and a key.
func (g *guest) sysrq(key string) {
	var keys []map[string]string
	for _, k := range []string{"alt", "sysrq", key} {
		keys = append(keys, map[string]string{"type": "qcode", "data": k})
	}
	g.execute("send-key", map[string]any{"keys": keys})
}

// enter types on the serial console.
func (g *guest) enter(text string) {
	g.t.Helper()
	if g.keys == nil { // it stays open: QEMU forgets what it has not read when the connection ends
		g.keys = must.Get(net.Dial("unix", filepath.Join(g.dir, "serial")))(g.t)
		g.t.Cleanup(func() { g.keys.Close() })
		go io.Copy(io.Discard, g.keys)
	}
	must.Get(io.WriteString(g.keys, text))(g.t)
}

// replace pulls the stick and plugs another one in.
func (g *guest) replace(disk string) {
	g.t.Helper()
	plug := func() string { return "plug" + strings.Repeat("-next", g.sticks) }
	g.execute("device_del", map[string]any{"id": plug()})
	g.sticks++
	g.says("stick: not there any more", g.sticks)
	g.execute("blockdev-add", map[string]any{"driver": "raw", "node-name": plug(),
		"file": map[string]any{"driver": "file", "filename": disk}})
	g.execute("device_add", map[string]any{"driver": "usb-storage", "id": plug(), "bus": "xhci.0", "drive": plug(),
		"removable": true})
}

// powerButton presses it, and waits for QEMU's end.
func (g *guest) powerButton() {
	g.t.Helper()
	g.execute("system_powerdown", nil)
	select {
	case <-g.ended:
	case <-time.After(2 * time.Minute):
		g.t.Fatal("the power button did not end the guest")
	}
}

// get returns a page.
func (g *guest) get(path string) (string, error) {
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: g.dial}}
	host := g.host
	if host == "" {
		host = fmt.Sprint("127.0.0.1:", g.port)
	}
	r, err := c.Get("http://" + host + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(b), err
}

// status returns the page /status, when it is there.
func (g *guest) status() (s struct {
	State, Problem, Ready, Management, Boot, Watchdog, Link, Clock, Configuration string

	Restarts   int
	Answered   float64
	Memory     float64 `json:"memory_mb"`
	ReadyAfter float64 `json:"ready_seconds"`
	Reports    []string
}) {
	g.t.Helper()
	g.until("the page /status", func() bool {
		text, err := g.get("/status")
		return err == nil && json.Unmarshal([]byte(text), &s) == nil
	})
	return s
}

// metric returns a value of the page /metrics.
func (g *guest) metric(name string) float64 {
	g.t.Helper()
	return value(g.t, must.Get(g.get("/metrics"))(g.t), name)
}

func value(t *testing.T, page, name string) (v float64) {
	t.Helper()
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			must.Get(fmt.Sscan(rest, &v))(t)
			return v
		}
	}
	t.Fatalf("no %s on the page\n%s", name, page)
	return 0
}

// measure runs the bench on the second model, and fails if a reply is missing. It returns what the bench printed.
func measure(t *testing.T, k kit, model, socket string, more ...string) string {
	t.Helper()
	args := append([]string{"run", "-target", "10.9.0.2", "-driver", model, "-iface", "vfio-user:" + socket, "-source",
		"10.9.0.1", "-gateway", "10.9.0.2", "-closed",
		"-timeout", "60s", "-warmup", "0s", "-self-test", "0s", "-out", t.TempDir()}, more...)
	out, err := exec.Command(k.bench, args...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("lost 0")) {
		t.Fatalf("bench %s: %v\n%s", strings.Join(more, " "), err, out)
	}
	return string(out)
}

// says returns the last line with the text when it is complete, and the CPU time of the guest's process is read.
func TestGuestSays(t *testing.T) {
	g := &guest{t: t, dir: t.TempDir(), ended: make(chan struct{})}
	g.cmd = exec.Command("sh", "-c",
		`printf 'ready one\r\nready two' >console; while [ ! -e end ]; do :; done; printf ' end\r\n' >>console; while :; do :; done`)
	g.cmd.Dir = g.dir
	must.OK(t, g.cmd.Start())
	t.Cleanup(func() {
		g.cmd.Process.Kill()
		g.cmd.Wait()
		if used := g.cpu(); used != 0 {
			t.Errorf("a process that has ended has %v of CPU time", used)
		}
	})
	g.until("some CPU time", func() bool { return g.cpu() > 0 })
	must.OK(t, os.WriteFile(filepath.Join(g.dir, "end"), nil, 0o644))
	if line := g.says("ready", 2); line != "ready two end" {
		t.Errorf("%q", line)
	}
}
