package simserve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
)

// program is a run of simnic in this process.
type program struct {
	sig    chan os.Signal
	lines  *bufio.Reader
	stderr bytes.Buffer
	code   chan int
}

func start(t *testing.T, ready int, args ...string) *program {
	t.Helper()
	r, w := io.Pipe()
	p := &program{sig: make(chan os.Signal, 1), lines: bufio.NewReader(r), code: make(chan int, 1)}
	go func() {
		p.code <- run(args, w, &p.stderr, p.sig)
		w.Close()
	}()
	for range ready {
		if line := p.line(t); !strings.HasPrefix(line, "ready model=toy socket=") {
			t.Fatalf("first line: %q, stderr: %s", line, &p.stderr)
		}
	}
	return p
}

// startPair starts two toys, whose ports are joined, and returns their sockets.
func startPair(t *testing.T, more ...string) (s *program, a, b string) {
	t.Helper()
	args := pairOf(t, more...)
	return start(t, 2, args...), args[3], args[7]
}

func pairOf(t *testing.T, more ...string) []string {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	return append([]string{"-model", "toy", "-socket", a, "-model", "toy", "-socket", b, "-wire", "pair"}, more...)
}

func (p *program) line(t *testing.T) string {
	t.Helper()
	s, _ := p.lines.ReadString('\n')
	return s
}

func (p *program) stop(t *testing.T) int {
	t.Helper()
	p.sig <- syscall.SIGTERM
	go io.Copy(io.Discard, p.lines)
	select {
	case c := <-p.code:
		return c
	case <-time.After(time.Minute):
		t.Fatal("simnic does not end")
		return 0
	}
}

// A simulator without a problem prints its ready lines and, when it ends, its counters. It logs nothing.
func TestQuietStart(t *testing.T) {
	s, a, b := startPair(t)
	p, q := openPort(t, a), openPort(t, b)
	p.send(frame)
	if got := q.receive(); !bytes.Equal(got, frame) {
		t.Errorf("received %x", got)
	}
	p.close()
	q.close()
	check.Equal(t, s.stop(t), 0, "exit %d")
	check.Equal(t, s.stderr.String(), "", "stderr %q")
}

var frame = bytes.Repeat([]byte{1, 2, 3, 4}, 30)

// port sends and receives one frame on a toy device.
type port struct {
	fn    *vfiouser.Function
	arena *dma.Arena
	mem   dma.Block
	tx    *uint32
}

func openPort(t *testing.T, path string) *port {
	t.Helper()
	fn := must.Get(vfiouser.Dial(path))(t)
	p := &port{fn: fn}
	p.arena = must.Get(dma.NewArena(fn, 1<<16))(t)
	p.mem = must.Get(p.arena.Alloc(1<<14, 4096))(t)
	bar := must.Get(fn.BAR(0))(t)
	bells := must.Get(fn.BAR(2))(t)
	p.tx = (*uint32)(must.Get(bells.Pointer(0x40, 4))(t))
	put := func(at int, iova uint64) {
		for i := range 8 {
			p.mem.Bytes[at+i] = byte(iova >> (8 * i))
		}
	}
	put(0, p.mem.IOVA+0x2000)
	put(0x1000, p.mem.IOVA+0x3000)
	fn.SetBusMaster(true)
	for i, v := range []uint64{p.mem.IOVA, p.mem.IOVA >> 32, 2, 2048, p.mem.IOVA + 0x1000, p.mem.IOVA >> 32, 2} {
		bar.Write32(0x20+4*uint64(i), uint32(v))
	}
	bar.Write32(4, 1)
	bells.Write32(0, 1)
	return p
}

func (p *port) send(frame []byte) {
	copy(p.mem.Bytes[0x3000:], frame)
	p.mem.Bytes[0x1008], p.mem.Bytes[0x1009] = byte(len(frame)), byte(len(frame)>>8)
	mmio.Store32(p.tx, 1)
}

func (p *port) receive() []byte {
	var w uint64
	if !await.Holds(func() bool {
		w = sim.Load64(p.mem.Bytes[8:])
		return w>>16&1 != 0
	}) {
		return nil
	}
	return p.mem.Bytes[0x2000:][:w&0xffff]
}

func (p *port) close() {
	bar, err := p.fn.BAR(0)
	if err == nil {
		bar.Write32(4, 0)
	}
	p.fn.SetBusMaster(false)
	p.arena.Close()
	p.fn.Close()
}

func TestPair(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pcap")
	s, a, b := startPair(t, "-wire", "pcap:"+file)
	x, y := openPort(t, a), openPort(t, b)
	x.send(frame)
	check.Same(t, y.receive(), frame, "received %x")
	s.sig <- syscall.SIGUSR1
	var r struct {
		Ports []struct {
			Model, Socket string
			Counts        sim.Counts
			Violations    []string
		}
	}
	line := s.line(t)
	if err := json.Unmarshal([]byte(line), &r); err != nil || len(r.Ports) != 2 || r.Ports[0].Socket != a {
		t.Fatalf("%q: %v", line, err)
	}
	if c := r.Ports[0].Counts; c.DMARead != 2 || c.DMAWrite != 1 || len(r.Ports[0].Violations) != 0 {
		t.Errorf("%s", line)
	}
	x.close()
	y.close()
	if c := s.stop(t); c != 0 {
		t.Errorf("exit %d: %s", c, &s.stderr)
	}
	for _, path := range []string{a, b} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if p, err := os.ReadFile(file); err != nil || len(p) != 24+16+120 || !bytes.Equal(p[40:], frame) {
		t.Errorf("pcap of %d bytes, %v", len(p), err)
	}
}

func TestWireCounts(t *testing.T) {
	for _, c := range []struct {
		flag string
		want sim.WireCounts
	}{
		{"-loss=1", sim.WireCounts{Frames: 1, Lost: 1}},
		{"-duplicate=1", sim.WireCounts{Frames: 1, Duplicated: 1}},
		{"-delay=1ms", sim.WireCounts{Frames: 1, Delayed: 1}},
	} {
		s, a, b := startPair(t, c.flag)
		x, y := openPort(t, a), openPort(t, b)
		x.send(frame)
		var r struct {
			Ports []struct{ Wire sim.WireCounts }
		}
		await.Holds(func() bool {
			s.sig <- syscall.SIGUSR1
			if err := json.Unmarshal([]byte(s.line(t)), &r); err != nil || len(r.Ports) != 2 {
				t.Fatalf("%+v: %v", r, err)
			}
			return r.Ports[1].Wire.Frames > 0
		})
		if r.Ports[1].Wire != c.want || r.Ports[0].Wire != (sim.WireCounts{}) {
			t.Errorf("%s: %+v, want %+v at the second port", c.flag, r.Ports, c.want)
		}
		x.close()
		y.close()
		s.stop(t)
	}
}

// A refused register write fails a run unless -strict is false. A receive descriptor with a reserved bit is reported,
// and the frame arrives; it fails a run only in strict mode.
func TestStrict(t *testing.T) {
	for _, c := range []struct {
		strict    string
		write     bool // of a register that is read only
		code      int
		violation string
	}{
		{"true", true, 1, "register is read only"},
		{"refused", true, 1, "register is read only"},
		{"false", true, 0, "register is read only"},
		{"true", false, 1, "warning: descriptor 0: reserved"},
		{"refused", false, 0, "warning: descriptor 0: reserved"},
		{"false", false, 0, "warning: descriptor 0: reserved"},
	} {
		s, a, b := startPair(t, "-strict="+c.strict)
		x, y := openPort(t, a), openPort(t, b)
		if c.write {
			must.Get(x.fn.BAR(0))(t).Write32(8, 1)
		} else {
			x.mem.Bytes[0x100c] = 1 // reserved
			x.send(frame)
			check.Same(t, y.receive(), frame, "received %x")
		}
		x.close()
		y.close()
		if code := s.stop(t); code != c.code || !strings.Contains(s.stderr.String(), c.violation) {
			t.Errorf("%+v: exit %d: %s", c, code, &s.stderr)
		}
	}
	var out strings.Builder
	if c := run([]string{"-strict=maybe"}, &out, &out, nil); c != 2 ||
		!strings.Contains(out.String(), "one of true, refused, false") {
		t.Errorf("-strict=maybe: exit %d: %s", c, &out)
	}
}

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "trace")
	s, a, _ := startPair(t, "-strict=false", "-trace", file)
	x := openPort(t, a)
	must.Get(x.fn.BAR(0))(t).Write32(8, 1)
	s.sig <- syscall.SIGUSR1
	s.line(t)
	text := must.Get(os.ReadFile(file))(t)
	check.Contains(t, string(text), "bus-master 1", "write      CONTROL (BAR 0 00004h) = 00000001h",
		"violation  error: write of 00000001 to STATUS (BAR 0 00008h): register is read only",
		"what led to the first violation", "\nRX_ENTRIES = 2h\n", "# sim:toy.1: ")
	x.close()
	if c := s.stop(t); c != 0 {
		t.Errorf("exit %d: %s", c, &s.stderr)
	}
	var out, said bytes.Buffer
	c := run(pairOf(t, "-trace", dir), &out, &said, nil)
	if c != 1 || !strings.Contains(said.String(), "-trace: "+dir+" is not written: open ") || out.Len() > 0 {
		t.Errorf("a trace that cannot be written: exit %d: %s%s", c, &out, &said)
	}
}

func TestTap(t *testing.T) {
	needs.Root(t, "a tap interface")
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespace with it
	ns, err := netns.New()
	if err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	defer ns.Close()
	a := filepath.Join(t.TempDir(), "a")
	r, w := io.Pipe()
	s := &program{sig: make(chan os.Signal, 1), lines: bufio.NewReader(r), code: make(chan int, 1)}
	go func() {
		runtime.LockOSThread()
		check.OK(t, netns.Set(ns))
		s.code <- run([]string{"-model", "toy", "-socket", a, "-wire", "tap:simnic0"}, w, &s.stderr, s.sig)
		w.Close()
	}()
	if line := s.line(t); line != fmt.Sprintf("ready model=toy socket=%s\n", a) {
		t.Fatalf("%q: %s", line, &s.stderr)
	}
	ifi := must.Get(net.InterfaceByName("simnic0"))(t)
	fd := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	const etherType = 0x88b5 // for experiments, IEEE 802
	swap := func(v uint16) uint16 { return v<<8 | v>>8 }
	must.OK(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap(etherType), Ifindex: ifi.Index}))
	p := openPort(t, a)
	announced := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, etherType >> 8, etherType & 0xff},
		bytes.Repeat([]byte{7}, 86)...)
	p.send(announced)
	buf := make([]byte, 2048)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	if n, _, err := unix.Recvfrom(fd, buf, 0); err != nil || !bytes.Equal(buf[:n], announced) {
		t.Errorf("the kernel received %x, %v", buf[:max(n, 0)], err)
	}
	must.Get(unix.Write(fd, announced))(t)
	if got := p.receive(); len(got) == 0 { // the kernel's own announcements may be received first
		t.Error("the device received nothing")
	}
	p.close()
	if c := s.stop(t); c != 0 {
		t.Errorf("exit %d: %s", c, &s.stderr)
	}
	check.Fails(t, "the tap is left", check.Err(net.InterfaceByName("simnic0")), nil)
}

func TestWrongUse(t *testing.T) {
	for args, says := range map[string]string{"": "", "-model toy": "", "-model toy -socket /x": "",
		"-model toy -socket /x -wire pair": "", "-what": "",
		"-model toy -socket /x -wire tap:": "", "-model toy -socket /x -wire tap:a -wire tap:b": "",
		"-model toy -socket /x -wire tap:a more": "",
		"-model toy -socket /x -wire subnet":     "", "-model toy -socket /x -wire tap:a -loss 2": "",
		"-model toy -socket /x -wire tap:a -delay -1s": "",
		"-model nothing -socket /x -wire tap:a":        "nothing"} {
		var stderr bytes.Buffer
		if c := run(strings.Fields(args), io.Discard, &stderr, nil); c != 2 || stderr.Len() == 0 ||
			!strings.Contains(stderr.String(), says) {
			t.Errorf("%q: exit %d: %s", args, c, &stderr)
		}
	}
}
