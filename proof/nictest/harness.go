// Package nictest is the conformance suite of drivers for PCI network interfaces. A driver's external test runs it on
// the driver's model:
//
//	func TestConformance(t *testing.T) {
//		nictest.Run(t, nictest.Harness{
//			Model: func() sim.Model { return ixgbesim.New(...) },
//			Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return ixgbe.Open(fn, o) },
//			Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*ixgbe.Device).Queue(q).Poll(r) },
//			Ring:  64, Queues: 4, MTU: 9000,
//		})
//	}
//
// The test steps device and driver alternately. While the driver opens, closes or restarts, the device runs on its
// own goroutine, but both see the virtual time of a testing/synctest bubble, so timeouts take no time and do not
// depend on how busy the machine is. That time does not advance while a goroutine waits in sync.Mutex.Lock, so drivers
// take locks whose holders sleep by kit.Hold. Only Serve, which never blocks, and vfio-user's sockets run in real time.
// Each violation that the model reports fails the test.
package nictest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// Harness describes a driver and its model to the suite.
type Harness struct {
	// Model returns a new device.
	Model func() sim.Model
	// Open opens the driver. The device then owns fn: its Close closes fn, and so does an Open that fails.
	Open func(fn pci.Function, o nic.Options) (nic.Device, error)
	// Poll makes one pass over queue q of d.
	Poll func(d nic.Device, q int, r *fastpath.Responder) int

	Ring      int // descriptors that the tests request in each ring, 32 to 1024
	Queues    int // queue pairs that the driver can open; 1 if zero
	Most      int // queue pairs for the test with many queues, if more than Queues: 16, or as many as the device has
	MTU       int // the largest MTU, 1500 or more
	WriteBack int // bytes in the longest descriptor or completion that the device writes; 64 if zero

	// Queue returns a pointer to queue q of d, whose fields named in Registers are a device's registers, not memory.
	Queue     func(d nic.Device, q int) any
	Registers []string

	// VFIOUser puts vfio-user between driver and model, with both ends in this process.
	VFIOUser bool

	// Beside, if set, starts a simulated kernel whose driver has the port, with this address and MTU of its interface.
	// Open then gets the kernel's Function, and no address.
	Beside func(t testing.TB, m sim.Model, p *sim.Port, mac [6]byte, mtu int) Kernel
	// IPv4 means that the device's rules select no IPv6, so that it stays with the kernel.
	IPv4 bool

	// Lacks names checks that do not apply to this device, each with the reason, which the test's log shows.
	Lacks map[string]string

	virtual bool   // the check runs in a bubble of testing/synctest
	seed    uint64 // of the port; 0 is random
}

// Kernel is a simulated kernel that shares its device with a driver beside its own. All methods are called while the
// device runs.
type Kernel interface {
	Function() pci.Function // for one Open
	Host() nic.Device       // the kernel's driver
	Kill()                  // ends the process that has opened the device, as far as the kernel sees it
	Reset() error           // resets the device and starts the kernel's driver again
	Remove()                // removes the device, whose driver can no longer reach it
	Left() int              // the number of objects of processes on the device
	Close() error           // ends the kernel's driver
}

// onPort is a kernel's Function whose configuration space is the port's: it reads as ones when the device is gone.
type onPort struct {
	pci.Function
	port *sim.Port
}

func (f onPort) ReadConfig(off int, p []byte) error { return f.port.ReadConfig(off, p) }
func (f onPort) Unwrap() pci.Function               { return f.Function }

// checks are all checks of the suite, by the names that Lacks uses.
var checks = []struct {
	name string
	run  func(*rig)
	wall bool // needs real time
}{
	{"echo", checkEcho, false},
	{"wrong checksum", checkWrongChecksum, false},
	{"test packets", checkTestPackets, false},
	{"loop", checkLoop, false},
	{"jumbo", checkJumbo, false},
	{"queues", checkQueues, false},
	{"most queues", checkMostQueues, false},
	{"wrap", checkWrap, false},
	{"burst", checkBurst, false},
	{"slow transmit", checkSlowTransmit, false},
	{"late completion", checkLateCompletion, false},
	{"full ring", checkFullRing, false},
	{"send and receive", checkSendRecv, false},
	{"frame size", checkFrameSize, false},
	{"serve", checkServe, true},
	{"stats", checkStats, false},
	{"no allocation", checkAllocs, false},
	{"no MMIO read", checkNoMMIORead, false},
	{"link", checkLink, false},
	{"reset", checkReset, false},
	{"reset while serving", checkResetServing, true},
	{"close", checkClose, false},
	{"killed", checkKilled, false},
	{"removed while opening", checkRemovedOpening, false},
	{"removed", checkRemoved, false},
	{"flipped write-backs", checkFlips, false},
	{"stalled while opening", checkStalledOpening, false},
	{"stalled", checkStalled, false},
	{"lost write", checkLostWrite, false},
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if why := h.Lacks[c.name]; why != "" {
				t.Skip(why)
			}
			if h.VFIOUser || c.wall {
				c.run(newRig(t, h))
				return
			}
			h.virtual = true
			synctest.Test(t, func(t *testing.T) { c.run(newRig(t, h)) })
		})
	}
}

// patience bounds every call that may wait for a real timeout; a call that takes longer hangs. linger is how long a
// check waits for a condition. In real time, both are far longer than needed, because the machine may be busy.
var patience, linger = 3 * time.Minute, 60 * time.Second

// rig is one device with its driver, and the other end of its wire.
type rig struct {
	testing.TB
	h      Harness
	model  *sim.Faulty
	port   *sim.Port
	far    *sim.Cable
	fn     pci.Function
	path   string // of the vfio-user socket
	server *vfioserver.Server
	dev    nic.Device
	resp   []*fastpath.Responder
	mtu    int
	next   uint64 // the number of the next frame
	log    slog.Handler

	kernel   Kernel // started by the first Open, if Harness.Beside is set
	answers  fastpath.Config
	mappings int // of the kernel's driver
}

func newRig(t testing.TB, h Harness) *rig {
	h.Queues = max(h.Queues, 1)
	if h.WriteBack == 0 {
		h.WriteBack = 64
	}
	if h.Ring < 32 || h.Ring > 1024 || h.MTU < 1500 {
		t.Fatalf("nictest: impossible harness: ring %d, MTU %d", h.Ring, h.MTU)
	}
	x := &rig{TB: t, h: h, model: sim.Inject(h.Model(), 1), mtu: 1500, answers: KindsConfig(),
		log: slog.DiscardHandler}
	x.port = must.Get(sim.New(x.model, sim.Options{Name: "test", Seed: h.seed}))(t)
	var near *sim.Cable
	near, x.far = sim.Pair()
	x.port.Connect(near)
	if h.VFIOUser {
		x.path = filepath.Join(t.TempDir(), "nic")
		x.listen()
	}
	t.Cleanup(func() {
		if x.kernel != nil {
			x.busy("Close of the kernel's driver", func() { must.Close(t, x.kernel) })
		}
		if x.server != nil {
			x.server.Close()
		}
		if v := x.port.Violations(); len(v) > 0 {
			t.Errorf("violations:\n%s", strings.Join(v[:min(len(v), 10)], "\n"))
		}
		x.port.Close()
	})
	return x
}

func (x *rig) listen() {
	x.server = must.Get(vfioserver.Listen(x.path, x.port, slog.New(slog.DiscardHandler)))(x)
}

// function opens the PCI function.
func (x *rig) function() (pci.Function, error) {
	if x.h.Beside != nil {
		x.startKernel()
		return onPort{x.kernel.Function(), x.port}, nil
	}
	if x.server != nil {
		return vfiouser.Dial(x.path)
	}
	return x.port.Function()
}

// startKernel starts the kernel's driver, unless it runs or there is none.
func (x *rig) startKernel() {
	if x.h.Beside == nil || x.kernel != nil {
		return
	}
	x.busy("start of the kernel's driver", func() { x.kernel = x.h.Beside(x, x.model.Model, x.port, ourMAC, x.mtu) })
	x.mappings = x.port.Mappings()
}

// removeKernel removes a device that no longer does what it should from the kernel's driver, if there is one.
func (x *rig) removeKernel() {
	if x.kernel != nil {
		x.busy("removal by the kernel", x.kernel.Remove)
		x.kernel, x.mappings = nil, 0
	}
}

// kill simulates the end of the driver's process, as the device sees it.
func (x *rig) kill() {
	switch {
	case x.kernel != nil:
		x.busy("kill", x.kernel.Kill)
	case x.server == nil:
		x.port.Drop()
	default:
		x.server.Close()
		x.listen()
	}
}

// reset resets the device under its driver, while the device runs.
func (x *rig) reset() error {
	if x.kernel != nil {
		return x.kernel.Reset()
	}
	return x.fn.Reset()
}

// tryOpen opens the driver while the device runs.
func (x *rig) tryOpen(queues int) error {
	x.Helper()
	fn, err := x.function()
	if err != nil {
		x.Fatal(err)
	}
	x.fn = fn
	o := nic.Options{Device: "sim:test", Queues: queues, RingSize: x.h.Ring, MTU: x.mtu, MAC: ourMAC,
		Log: slog.New(x.log)}
	if x.kernel != nil {
		o.MAC, o.Match = [6]byte{}, &x.answers // the interface keeps its address
	}
	x.busy("Open", func() { x.dev, err = x.h.Open(fn, o) })
	if err != nil {
		x.dev = nil
	}
	return err
}

// open is tryOpen for a driver that must open successfully, with responders for its queues.
func (x *rig) open(queues int) {
	x.Helper()
	if err := x.tryOpen(queues); err != nil {
		x.Fatalf("Open: %v", err)
	}
	var mac [6]byte
	if _, err := fmt.Sscanf(x.dev.Info().MAC, "%02x:%02x:%02x:%02x:%02x:%02x",
		&mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]); err != nil {
		x.Fatalf("Info().MAC is %q: %v", x.dev.Info().MAC, err)
	}
	if mac != ourMAC {
		x.Fatalf("MAC is %x, Options asked for %x", mac, ourMAC)
	}
	x.resp = nil
	for range queues {
		x.resp = append(x.resp, NewResponder(x))
	}
	x.settle()
}

// close closes the driver while the device runs.
func (x *rig) close() {
	x.Helper()
	x.busy("Close", func() { must.Close(x, x.dev) })
	x.dev = nil
}

// busy runs f while the device runs freely, and fails the test if f takes longer than patience.
func (x *rig) busy(what string, f func()) {
	x.Helper()
	if x.h.virtual {
		x.port.StartVirtual()
	} else {
		x.port.Start()
	}
	defer x.port.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		x.Fatalf("%s has not returned for %v", what, patience)
	}
}

func (x *rig) poll() int {
	n := 0
	for q, r := range x.resp {
		n += x.h.Poll(x.dev, q, r)
	}
	return n
}

// settle steps device and driver alternately until both are idle.
func (x *rig) settle() {
	for idle := 0; idle < 8; idle++ {
		if x.port.Settle(100000) > 1 || x.poll() > 0 {
			idle = 0
		}
	}
}

func (x *rig) send(frames ...[]byte) {
	for _, f := range frames {
		x.far.Send(0, f)
	}
}

// received returns all frames that the device has sent since the last call.
func (x *rig) received() [][]byte {
	var all [][]byte
	for f := x.far.Recv(0); f != nil; f = x.far.Recv(0) {
		all = append(all, f)
	}
	return all
}

// exchange sends requests and expects the reply to each.
func (x *rig) exchange(reqs [][]byte) {
	x.Helper()
	x.send(reqs...)
	x.settle()
	if n := x.match(reqs); n != len(reqs) {
		x.Fatalf("%d replies to %d requests", n, len(reqs))
	}
}

// match reads the frames that the device has sent and fails unless each is the reply to its own request, byte for byte,
// in order within each flow. It passes each frame to see and returns their number.
func (x *rig) match(reqs [][]byte, see ...func(frame []byte)) int {
	x.Helper()
	want := map[string]int{}
	for i, r := range reqs {
		want[string(reply(r))] = i
	}
	got := x.received()
	last := map[string]int{}
	for i, f := range got {
		n, ok := want[string(f)]
		if !ok {
			x.Fatalf("frame %d of %d from the device is the reply to no request, or comes twice:\n%x", i, len(got), f)
		}
		delete(want, string(f))
		if at, ok := last[flow(reqs[n])]; ok && at > n {
			x.Fatalf("reply to request %d came before that to %d", at, n)
		}
		last[flow(reqs[n])] = n
		for _, s := range see {
			s(f)
		}
	}
	return len(got)
}

func (x *rig) stats() nic.Stats {
	x.Helper()
	return x.statsOf(x.dev)
}

// hostStats returns the statistics of the kernel's driver.
func (x *rig) hostStats() nic.Stats {
	x.Helper()
	return x.statsOf(x.kernel.Host())
}

func (x *rig) statsOf(d nic.Device) (s nic.Stats) {
	x.Helper()
	var err error
	x.busy("ReadStats", func() { err = d.ReadStats(&s) })
	if err != nil {
		x.Fatalf("ReadStats: %v", err)
	}
	return s
}

func (x *rig) link() nic.Link {
	x.Helper()
	var l nic.Link
	var err error
	x.busy("Link", func() { l, err = x.dev.Link() })
	if err != nil {
		x.Fatalf("Link: %v", err)
	}
	return l
}

// Cost returns the PCIe transactions for n replies to requests of size bytes, with batch of them on the wire at a time,
// in steady state. A driver's test asserts it.
func Cost(t testing.TB, h Harness, size, n, batch int) sim.Counts {
	t.Helper()
	x := newRig(t, h)
	x.open(1)
	defer x.close()
	for range 2 * h.Ring {
		x.exchange(x.requests(1, size))
	}
	before := x.port.Counts()
	for i := 0; i < n; i += batch {
		x.exchange(x.requests(min(batch, n-i), size))
	}
	return x.port.Counts().Since(before)
}

// NewResponder returns the Responder that the suite uses, and EchoRequest an ICMP echo request of size bytes that it
// answers, for a driver's own tests and benchmarks.
func NewResponder(t testing.TB) *fastpath.Responder {
	t.Helper()
	r, err := fastpath.New(fastpath.Config{MAC: ourMAC, UDPPorts: []uint16{echoPort},
		ChecksumBytes: fastpath.DefaultChecksumBytes,
		// a test that calls Poll directly does not update the time
		Rate: fastpath.DefaultRate, Burst: 1 << 30, TicksPerSecond: 1 << 30,
		Addresses: []netip.Prefix{netip.PrefixFrom(our4, 24), netip.PrefixFrom(our6, 64)}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// EchoRequest: see NewResponder.
func EchoRequest(size int) []byte { return request(icmp4, size, 0, 1) }
