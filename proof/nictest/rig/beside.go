package rig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
)

// functionBeside returns fn as a simulated kernel shows it to a driver beside its own: found's RDMA device, which open
// opens, with the kernel's files of it. The driver is asked for interface eth1.
func functionBeside(t testing.TB, fn pci.Function, found verbs.Found, firmware string,
	open func(verbs.Found) (verbs.Kernel, error)) *verbs.Function {
	t.Helper()
	sys := t.TempDir()
	found.Function.Address, found.Function.ID, found.Function.NUMANode = "0000:03:00.0", fn.ID(), -1
	dir, rdma := filepath.Join(sys, "bus/pci/devices", found.Function.Address),
		filepath.Join(sys, "class/infiniband", found.Name)
	must.OK(t, os.MkdirAll(dir, 0o755))
	config := make([]byte, 4096)
	for off := 0; off < len(config); off += 4 {
		must.OK(t, fn.ReadConfig(off, config[off:off+4]))
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "config"), config, 0o644))
	must.OK(t, os.MkdirAll(rdma, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(rdma, "fw_ver"), []byte(firmware+"\n"), 0o644))
	return must.Get(verbs.New("eth1", found, sys, open))(t)
}

// Lock is a mutex, of capacity 1. A goroutine that waits for a sync.Mutex would stop the time in a bubble of
// testing/synctest.
type Lock chan struct{}

// Lock locks l.
func (l Lock) Lock() { l <- struct{}{} }

// Unlock unlocks l.
func (l Lock) Unlock() { <-l }

// Data returns the data of the attribute of a call to a simulated kernel, nil if the call does not have it.
func Data(attrs []verbs.Attr, id uint16) []byte {
	for _, a := range attrs {
		if a.ID == id {
			return a.Data
		}
	}
	return nil
}

// As returns the structure at b.
func As[T any](b []byte) *T { return (*T)(unsafe.Pointer(&b[0])) }

// Region is memory that a process registered with a simulated kernel, and the card's address of it.
type Region struct{ Start, Length, IOVA uint64 }

// Regions are those of a process.
type Regions []Region

// Device returns the card's address of length bytes at an address of the process, or EFAULT.
func (all Regions) Device(at, length uint64) (uint64, error) {
	for _, r := range all {
		if at >= r.Start && at+length <= r.Start+r.Length {
			return r.IOVA + at - r.Start, nil
		}
	}
	return 0, unix.EFAULT
}

// errno returns Linux's error number for a card that is gone or does not answer, and other errors as they are.
func errno(err error) error {
	switch {
	case errors.Is(err, nic.ErrGone):
		return unix.EIO
	case errors.Is(err, nic.ErrTimeout):
		return unix.ETIMEDOUT
	}
	return err
}

// DriverBeside has the functions to open and to step a driver beside the kernel's.
type DriverBeside[D nic.Device] struct {
	Open func(nic.Options) (D, error)
	Poll func(d D, queue int, r *fastpath.Responder) int
	Left func() int // how many of its objects are left on the card
}

// Beside is a card with a simulated kernel, whose driver drives it, and our driver beside the kernel's.
type Beside[D nic.Device] struct {
	testing.TB
	Port     *sim.Port
	Far      *sim.Cable
	Host     nic.Device // the kernel's driver
	Dev      D
	Resp     []*fastpath.Responder
	Logs     Log
	Violates string // what the card may report as a violation

	bench  bool
	driver DriverBeside[D]
}

// NewBeside returns a rig whose driver is not open. kernel opens the kernel's driver while the model runs. At the end
// of the test the rig fails for each violation that the model reported.
func NewBeside[D nic.Device](t testing.TB, name string, m sim.Model, kernel func(*sim.Port) nic.Device,
	d DriverBeside[D]) *Beside[D] {
	x := &Beside[D]{TB: t, driver: d, Port: must.Get(sim.New(m, sim.Options{Name: name}))(t)}
	var near *sim.Cable
	near, x.Far = sim.Pair()
	x.Port.Connect(near)
	x.Busy(func() { x.Host = kernel(x.Port) })
	t.Cleanup(func() {
		x.Busy(func() { must.Close(t, x.Host) })
		for _, v := range x.Port.Violations() {
			if x.Violates == "" || !strings.Contains(v, x.Violates) {
				t.Error("violation: ", v)
			}
		}
		x.Port.Close()
	})
	return x
}

// Busy runs f while the model runs.
func (x *Beside[D]) Busy(f func()) {
	x.Port.Start()
	defer x.Port.Stop()
	f()
}

// AnsweredBeside returns the datagrams that a responder beside the kernel answers by default: to port 7 of 10.0.0.2.
func AnsweredBeside() *fastpath.Config {
	return &fastpath.Config{MAC: OurMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")},
		UDPPorts: []uint16{7}}
}

// TryOpen opens the driver with 64 descriptors. A driver that does not open leaves nothing on the card.
func (x *Beside[D]) TryOpen(o nic.Options) (err error) {
	x.Helper()
	o.RingSize = 64
	o.Log = slog.New(slog.NewTextHandler(&x.Logs, nil))
	x.Resp, x.bench = nil, o.Steer != nil
	x.Busy(func() { x.Dev, err = x.driver.Open(o) })
	if err != nil {
		x.nothingLeft()
	}
	return err
}

// Open opens the driver, which must succeed: for a bench if o has a Steer, otherwise with responders for o.Match or
// AnsweredBeside.
func (x *Beside[D]) Open(o nic.Options) {
	x.Helper()
	if o.Match == nil && o.Steer == nil {
		o.Match = AnsweredBeside()
	}
	if err := x.TryOpen(o); err != nil {
		x.Fatalf("%v\n%s", err, x.Logs.String())
	}
	for range max(o.Queues, 1) {
		if o.Match != nil {
			x.Resp = append(x.Resp, must.Get(fastpath.New(*o.Match))(x))
		}
	}
	x.Settle()
}

// Close closes the driver, which leaves nothing on the card.
func (x *Beside[D]) Close() {
	x.Helper()
	x.Busy(func() { must.Close(x, x.Dev) })
	x.Resp, x.bench = nil, false
	x.nothingLeft()
}

func (x *Beside[D]) nothingLeft() {
	x.Helper()
	if n := x.driver.Left(); n != 0 {
		x.Errorf("%d objects are left", n)
	}
}

// Settle steps the card and our driver until both are idle, and returns how many frames each queue answered.
func (x *Beside[D]) Settle() (answered []int) {
	answered = make([]int, len(x.Resp))
	for idle := 0; idle < 8; idle++ {
		if x.Port.Settle(100000) > 1 {
			idle = 0
		}
		for i, r := range x.Resp {
			if n := x.driver.Poll(x.Dev, i, r); n > 0 {
				answered[i], idle = answered[i]+n, 0
			}
		}
	}
	return answered
}

// Reaches sends a frame from the wire and returns who received it: "ours" if it was answered or the bench has it,
// "kernel", or "nobody".
func (x *Beside[D]) Reaches(frame []byte) string {
	x.Helper()
	x.Far.Send(0, frame)
	answered, sent, bench, buf := 0, 0, 0, make([]byte, 2048)
	for _, n := range x.Settle() {
		answered += n
	}
	for x.Far.Recv(0) != nil {
		sent++
	}
	receive := func(d nic.Device) int {
		n, _, err := d.Recv(buf)
		must.OK(x, err)
		return n
	}
	if x.bench {
		bench = receive(x.Dev)
	}
	kernel := receive(x.Host)
	switch {
	case answered == 1 && sent == 1 && bench+kernel == 0, bench == len(frame) && answered+sent+kernel == 0:
		return "ours"
	case answered+sent+bench == 0 && kernel == len(frame):
		return "kernel"
	case answered+sent+bench+kernel == 0:
		return "nobody"
	}
	x.Errorf("%d answered, %d left the card; of %d bytes the bench received %d and the kernel %d", answered, sent,
		len(frame), bench, kernel)
	return "?"
}

// Expect sends frames by name and checks who receives them.
func (x *Beside[D]) Expect(want string, frames map[string][]byte) {
	x.Helper()
	for name, f := range frames {
		if got := x.Reaches(f); got != want {
			x.Errorf("%s is for %s, want %s", name, got, want)
		}
	}
}

// Sends sends a frame through the driver, and expects it on the wire.
func (x *Beside[D]) Sends(frame []byte) {
	x.Helper()
	must.OK(x, x.Dev.Send(frame))
	x.Settle()
	if sent := x.Far.Recv(0); !bytes.Equal(sent, frame) {
		x.Errorf("sent %x, want %x", sent, frame)
	}
}

// Serve runs queue 0 on its own thread until the log contains text.
func (x *Beside[D]) Serve(d nic.Answerer, text string, causes func()) (err error) {
	x.Helper()
	x.Busy(func() {
		err = serveOn(d, x.Resp[0], func() {
			causes()
			if !await.Holds(func() bool { return strings.Contains(x.Logs.String(), text) }) {
				x.Errorf("%q is not logged\n%s", text, x.Logs.String())
			}
		})
	})
	return err
}

// Restarts expects that the driver restarts for a reason while queue 0 is served.
func (x *Beside[D]) Restarts(reason string, causes func()) {
	x.Helper()
	must.OK(x, x.Serve(x.Dev, `was restarted" device=eth1 reason=`+reason, causes))
}

// To4 returns a frame with an IPv4 packet to 10.0.0.last, with a protocol and the start of its payload.
func To4(last, protocol byte, payload ...byte) []byte {
	f := Echo(64)
	f[23], f[33] = protocol, last
	clear(f[34:])
	copy(f[34:], payload)
	f[24], f[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum&0xFFFF + sum>>16
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum&0xFFFF+sum>>16))
	if protocol == 17 {
		binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
	}
	return f
}

// UDP4 returns a datagram to a port of 10.0.0.last.
func UDP4(last byte, port uint16) []byte { return To4(last, 17, 0x30, 0x39, byte(port>>8), byte(port)) }

// ARP is a broadcast that only the kernel handles.
func ARP() []byte {
	f := append(bytes.Repeat([]byte{0xFF}, 6), FarMAC[:]...)
	return append(append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1), make([]byte, 40)...)
}

// Killed kills the process that uses the card 100 times: in a random one of the calls that Open makes to the kernel, of
// which *calls counts the number, or after random steps under traffic. The kernel ends the process in call *dieAt.
// Nothing is left on the card, which no longer writes to the process's memory, and the kernel receives everything
// again.
func (x *Beside[D]) Killed(calls, dieAt *int, kill func()) {
	rng := rand.New(rand.NewPCG(27, 1))
	opening, match := 0, AnsweredBeside()
	for i := range needs.Cases(100, 30) {
		*calls, *dieAt = 0, 0
		if i%2 == 1 {
			*dieAt = 1 + rng.IntN(opening)
		}
		err := x.TryOpen(nic.Options{Match: match})
		switch {
		case *dieAt != 0 && err == nil:
			x.Fatalf("killed in call %d of %d, and the card is open", *dieAt, opening)
		case *dieAt == 0 && err != nil:
			x.Fatal(err)
		case err == nil:
			opening = *calls
			r := must.Get(fastpath.New(*match))(x)
			for range rng.IntN(200) {
				x.Far.Send(0, UDP4(2, 7))
				x.Far.Send(0, UDP4(2, 9))
				for range rng.IntN(4) {
					x.Port.Step()
				}
				if rng.IntN(3) > 0 {
					x.driver.Poll(x.Dev, 0, r)
				}
			}
			x.Busy(kill)
		}
		x.nothingLeft()
		x.drain()
		if got := x.Reaches(UDP4(2, 7)); got != "kernel" {
			x.Fatalf("after kill %d a frame is for %s", i, got)
		}
		if err == nil {
			x.Busy(func() { x.Dev.Close() })
		}
	}
}

// Refused is Refusals for the calls that Open makes to the kernel, which fail with ENOSPC.
func (x *Beside[D]) Refused(k *Kernel, o nic.Options) string {
	return Refusals(func(n int) (string, error) {
		k.Calls, k.FailAt = 0, n
		err := x.TryOpen(o)
		made := k.Calls
		k.FailAt = 0
		if err == nil {
			x.Close()
		}
		if made < n {
			return "", nil
		}
		return "call", err
	})
}

// drain takes what is left on the wire and in the queue of the kernel's driver.
func (x *Beside[D]) drain() {
	x.Helper()
	buf := make([]byte, 2048)
	for some := true; some; {
		some = false
		x.Port.Settle(100000)
		for x.Far.Recv(0) != nil {
			some = true
		}
		for n := 1; n > 0; some = some || n > 0 {
			var err error
			n, _, err = x.Host.Recv(buf)
			must.OK(x, err)
		}
	}
}
