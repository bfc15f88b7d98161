package campaign

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// ipoib is a card with an InfiniBand port, on a subnet for which this process is the switch, the subnet manager, the
// subnet administration, and the host that sends requests.
type ipoib struct {
	*served
	probes
	subnet *fabric.Fabric
	global bool   // requests have a global route header
	qpn    uint32 // the responder's queue pair from its ARP reply; 0 if unknown
	in     []fabric.Packet
}

// sweep is the interval at which the manager checks the port. With real hardware, the switch reports a reset card
// immediately.
const sweep = 100 * time.Millisecond

func openInfiniBand(c *campaign, r *rand.Rand) (target, error) {
	p, err := newProbes(r, ourMAC, 1514)
	if err != nil {
		return nil, err
	}
	f := &catalogue.Firmware{}
	s, err := serve(c, "mlx4-ib", catalogue.RandomMlx4(ourMAC, mlx4sim.InfiniBand, r, f), r)
	if err != nil {
		return nil, err
	}
	s.firmware = f
	t := &ipoib{served: s, probes: p, global: r.IntN(2) == 1}
	// While its LID changes, the port may send packets with either LID, so complaints are only logged.
	t.subnet = fabric.New(func(format string, args ...any) { c.simLog.Warn("subnet: " + fmt.Sprintf(format, args...)) },
		s.far)
	t.subnet.Sweep = sweep
	return t, nil
}

func (t *ipoib) String() string {
	id := t.port.Config()
	return fmt.Sprintf("%04x:%04x, %s, global route header %v", id.Vendor, id.Device, t.what, t.global)
}

func (t *ipoib) args() []string {
	return []string{"nic.driver=mlx4", "nic.device=vfio-user:" + t.path, addresses, "respond.stamp_ports=[862]"}
}

// An IPoIB payload starts with the EtherType and two zero bytes (RFC 4391 §6).
const (
	etherHeader = 14
	ipoibHeader = 4
	typeARP     = 0x0806
)

func (t *ipoib) ask(seq uint32) bool {
	if t.qpn == 0 || !t.far.Up() {
		return false
	}
	f := t.codec.Build(seq, 0)
	var grh []byte
	t.subnet.Change(func() {
		if t.global {
			grh = fabric.GRH(t.subnet.HostGID(), t.subnet.Ports[0].GID(t.subnet))
		}
	})
	t.subnet.Send(0, t.qpn, append([]byte{f[12], f[13], 0, 0}, f[etherHeader:]...), grh)
	return true
}

func (t *ipoib) take() (seq uint32, wrong string, any bool) {
	if len(t.in) == 0 {
		t.subnet.Step()
		t.in = t.subnet.Received()
	}
	for len(t.in) > 0 {
		p := t.in[0]
		t.in = t.in[1:]
		b := p.Payload
		switch {
		case len(b) < ipoibHeader:
			return 0, fmt.Sprintf("a payload of %d bytes", len(b)), true
		case binary.BigEndian.Uint16(b) == typeARP:
			// a reply: the hardware address starts with the queue pair
			if len(b) == ipoibHeader+56 && b[ipoibHeader+7] == 2 {
				t.qpn = binary.BigEndian.Uint32(b[ipoibHeader+8:]) & 0xffffff
			}
			continue
		}
		f := append(append(append([]byte{}, theirMAC[:]...), ourMAC[:]...), b[0], b[1])
		seq, wrong, ours := t.judge(append(f, b[ipoibHeader:]...))
		if !ours {
			continue
		}
		if wrong == "" && (p.DQP != fabric.HostQP || p.GRH != nil != t.global) {
			wrong = fmt.Sprintf("a reply to queue pair %#x, global route header %v: %x", p.DQP, p.GRH != nil, b)
		}
		return seq, wrong, true
	}
	return 0, "", false
}

// silent requests the responder's queue pair by ARP, because it changes with each start.
func (t *ipoib) silent() {
	b := []byte{typeARP >> 8, typeARP & 0xff, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1}
	b = binary.BigEndian.AppendUint32(b, fabric.HostQP)
	t.subnet.Change(func() {
		gid, from, to := t.subnet.HostGID(), theirs4.As4(), ours4.As4()
		b = append(append(append(append(b, gid[:]...), from[:]...), make([]byte, 20)...), to[:]...)
	})
	t.subnet.Multicast(fabric.Broadcast, b)
}

// subnetOf is the subnet of a session with an InfiniBand card.
func (s *session) subnetOf() *fabric.Fabric { return s.t.(*ipoib).subnet }

// joined changes something in the subnet and waits until the port has joined its groups again.
func (s *session) joined(change func(f *fabric.Fabric)) error {
	f := s.subnetOf()
	joins := func() (n int) {
		f.Change(func() { n = f.Joins[fabric.Broadcast] })
		return n
	}
	before := joins()
	f.Change(func() { change(f) })
	return s.until("the port's membership of its groups", func() bool { return joins() > before })
}

const (
	portActive = 4    // PortInfo: PortState (IBA vol. 1 §14.2.5.6)
	portDown   = 1    // in a Set: the link goes down and trains again
	reregister = 0x80 // PortInfo: ClientReregister
)

// subnetFaults are faults of an InfiniBand subnet and its manager.
var subnetFaults = []fault{
	{name: "subnet manager gone and back", on: []string{"infiniband"}, do: func(s *session) error {
		f := s.subnetOf()
		f.Change(func() { f.Absent, f.DropReceives = true, true })
		s.for_(50*time.Millisecond, 2*time.Second) // existing addresses keep working
		return s.joined(func(f *fabric.Fabric) {
			f.Absent, f.DropReceives = false, false
			f.Configure(f.Ports[0], portActive, reregister)
		})
	}},
	{name: "card reset without a subnet manager", on: []string{"infiniband"}, do: func(s *session) error {
		f := s.subnetOf()
		f.Change(func() { f.Absent, f.DropReceives = true, true })
		err := s.noticed(s.device().port.Reset)
		s.for_(50*time.Millisecond, 2*time.Second)
		f.Change(func() { f.Absent, f.DropReceives = false, false })
		return err
	}},
	{name: "another LID", on: []string{"infiniband"}, do: func(s *session) error {
		lid := uint16(0x10 + s.r.IntN(0x1000))
		s.note("%#x", lid)
		return s.joined(func(f *fabric.Fabric) {
			f.Ports[0].LID = lid
			f.Configure(f.Ports[0], portActive, 0)
		})
	}},
	{name: "another subnet manager", on: []string{"infiniband"}, do: func(s *session) error {
		lid := uint16(0x2000 + s.r.IntN(0x1000))
		s.note("at LID %#x", lid)
		return s.joined(func(f *fabric.Fabric) {
			f.Manager = lid
			f.Configure(f.Ports[0], portActive, 0)
		})
	}},
	{name: "clients to register again", on: []string{"infiniband"}, do: func(s *session) error {
		n := 1 + s.r.IntN(10)
		s.note("%d times", n)
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = s.joined(func(f *fabric.Fabric) { f.Configure(f.Ports[0], portActive, reregister) })
		}
		return err
	}},
	{name: "port down and up by its manager", on: []string{"infiniband"}, do: func(s *session) error {
		return s.joined(func(f *fabric.Fabric) { f.Configure(f.Ports[0], portDown, 0) })
	}},
	{name: "administration that says nothing", on: []string{"infiniband"}, do: func(s *session) error {
		f := s.subnetOf()
		f.Change(func() {
			f.DropReceives = true
			f.Configure(f.Ports[0], portActive, reregister)
		})
		s.for_(50*time.Millisecond, 2*time.Second)
		return s.joined(func(f *fabric.Fabric) { f.DropReceives = false })
	}},
	{name: "administration that refuses", on: []string{"infiniband"}, do: func(s *session) error {
		f, status := s.subnetOf(), uint16(1+s.r.IntN(7))<<8
		s.note("with %#04x", status)
		f.Change(func() {
			f.Refuse = func([]byte) uint16 { return status }
			f.Configure(f.Ports[0], portActive, reregister)
		})
		s.for_(50*time.Millisecond, 2*time.Second)
		err := s.joined(func(f *fabric.Fabric) { f.Refuse = nil })
		return err
	}},
	{name: "another Q_Key", on: []string{"infiniband"}, do: func(s *session) error {
		key := 1 + s.r.Uint32N(1<<31-1) // keys with the highest bit set are privileged
		s.note("%#x", key)
		f := s.subnetOf()
		return s.noticed(func() {
			f.Change(func() {
				f.QKey, f.Groups[fabric.Broadcast].QKey = key, key
				f.Configure(f.Ports[0], portActive, reregister)
			})
		})
	}},
	{name: "malformed management datagrams", on: []string{"infiniband"}, do: func(s *session) error {
		f := s.subnetOf()
		n := 1 + s.r.IntN(500)
		s.note("%d", n)
		for range n {
			b := make([]byte, 256)
			for i := range b {
				b[i] = byte(s.r.Uint32())
			}
			if s.r.IntN(2) == 1 { // the header of a subnet administration reply (IBA vol. 1 §15.2)
				copy(b, []byte{1, 3, 2, 0x81, 0, 0, 0, 0})
			}
			f.Change(func() {
				p := fabric.Packet{DLID: f.Ports[0].LID, SLID: f.Manager, PKey: 0xffff, DQP: 1, SQP: 1,
					QKey: 0x80010000, Payload: b[:len(b)-s.r.IntN(2)*s.r.IntN(250)]}
				f.Inject(0, p)
			})
			time.Sleep(time.Duration(s.r.IntN(1000)) * time.Microsecond)
		}
		return nil
	}},
}
