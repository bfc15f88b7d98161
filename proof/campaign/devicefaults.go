package campaign

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// device is the model of a session that uses one.
func (s *session) device() *served {
	switch t := s.t.(type) {
	case *card:
		return t.served
	case *messages:
		return t.served
	case *ipoib:
		return t.served
	}
	return nil
}

// transactions are the counters of the device's port.
func (s *served) transactions() (all, interrupts, violations uint64) {
	c := s.port.Counts()
	return c.MMIORead + c.MMIOWrite + c.DMARead + c.DMAWrite, c.Interrupts, uint64(len(s.port.Violations()))
}

// deviceFaults are the faults that every model supports.
var deviceFaults = []fault{
	{name: "function reset", on: []string{"model"}, do: func(s *session) error {
		return s.noticed(s.device().port.Reset)
	}},
	{name: "removal", on: []string{"model"}, ends: true, do: func(s *session) error {
		s.device().port.Unplug()
		if err := s.until("the end of a responder whose device is gone",
			func() bool { return s.proc.endings() > s.began }); err != nil {
			return err
		}
		s.for_(0, time.Second)
		s.device().port.UnplugAfter(-1)
		return nil
	}},
	{name: "all ones for a moment", on: []string{"model"}, ends: true, do: func(s *session) error {
		s.device().port.Unplug()
		s.for_(0, 50*time.Millisecond)
		s.device().port.UnplugAfter(-1)
		return nil
	}},
	{name: "stuck device", on: []string{"model"}, ends: true, do: func(s *session) error {
		d := s.device()
		d.port.Between(func() { d.faulty.Stalled = true })
		s.for_(20*time.Millisecond, 2*time.Second)
		d.port.Between(func() { d.faulty.Stalled = false })
		return nil
	}},
	{name: "stuck transmit queue", on: []string{"model"}, do: func(s *session) error {
		d := s.device()
		d.port.Between(func() { d.faulty.Pause(true) })
		s.for_(20*time.Millisecond, 2*time.Second)
		d.port.Between(func() { d.faulty.Pause(false) })
		return nil
	}},
	{name: "host that takes no frames", on: []string{"mlx4"}, do: func(s *session) error {
		m := s.device().model.(*mlx4sim.Model)
		m.HoldReceive(true)
		s.for_(20*time.Millisecond, 2*time.Second)
		m.HoldReceive(false)
		return nil
	}},
	{name: "write-backs with a bit flipped", on: []string{"model"}, ends: true, do: func(s *session) error {
		s.traffic.mu.Lock()
		// a flipped length truncates a frame, and frames no longer than a completion are flipped, too
		s.traffic.bears = true
		s.traffic.mu.Unlock()
		d, every := s.device(), 2+s.r.IntN(100)
		s.note("one in %d", every)
		d.port.Between(func() { d.faulty.FlipWriteBacks(every, 64) })
		s.for_(10*time.Millisecond, 500*time.Millisecond)
		d.port.Between(func() { d.faulty.FlipWriteBacks(0, 0) })
		time.Sleep(2 * lostTime) // for requests in flight
		return nil
	}},
	{name: "DMA writes late", on: []string{"model"}, do: func(s *session) error {
		d, late := s.device(), time.Duration(s.r.Int64N(int64(5*time.Millisecond)))
		s.note("by %v", late.Round(time.Microsecond))
		d.port.Between(func() { d.faulty.DelayDMA(late) })
		s.for_(50*time.Millisecond, time.Second)
		d.port.Between(func() { d.faulty.DelayDMA(0) })
		return nil
	}},
	{name: "register writes lost", on: []string{"model"}, ends: true, do: func(s *session) error {
		d, rng := s.device(), rand.New(rand.NewPCG(s.r.Uint64(), 1))
		d.port.Between(func() { d.faulty.LoseWrite = func(int, uint64, []byte) bool { return rng.IntN(3) == 0 } })
		s.for_(50*time.Millisecond, time.Second)
		d.port.Between(func() { d.faulty.LoseWrite = nil })
		return nil
	}},
	{name: "link flap", on: []string{"model"}, do: func(s *session) error {
		n := 1 + s.r.IntN(5)
		s.note("%d times", n)
		for range n {
			s.device().far.SetUp(false)
			time.Sleep(time.Duration(s.r.Int64N(int64(300 * time.Millisecond))))
			s.device().far.SetUp(true)
			time.Sleep(time.Duration(s.r.Int64N(int64(100 * time.Millisecond))))
		}
		return nil
	}},
	{name: "wire that loses, doubles and reorders", on: []string{"model"}, do: func(s *session) error {
		d := s.device()
		bad := sim.Impair(nil, sim.Impairment{Loss: s.r.Float64() / 5, Duplicate: s.r.Float64() / 5,
			Reorder: s.r.Float64() / 5,
			Delay:   time.Duration(s.r.Int64N(int64(time.Millisecond))), Seed: s.r.Uint64()})
		bad.Wire = d.wire.Wire
		s.note("loss %.2f", bad.Loss)
		d.port.Connect(bad)
		s.for_(50*time.Millisecond, time.Second)
		d.port.Connect(d.wire)
		return nil
	}},
	{name: "the model's process leaves", on: []string{"model"}, ends: true, do: func(s *session) error {
		d := s.device()
		if err := d.server.Close(); err != nil {
			return err
		}
		err := s.until("the end of a responder whose device left", func() bool { return s.proc.endings() > s.began })
		if err != nil {
			return err
		}
		s.for_(0, time.Second)
		return d.listen()
	}},
	{name: "malformed vfio-user clients", on: []string{"model"}, do: func(s *session) error {
		n := 1 + s.r.IntN(20)
		s.note("%d", n)
		for range n {
			c, err := net.Dial("unix", s.device().path)
			if err != nil {
				return err
			}
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, _ = c.Write(garbage(s.r, s.r.IntN(2000)))
			c.Close()
		}
		return nil
	}},
	{name: "malformed vfio-user device", on: []string{"model"}, ends: true, do: malformedDevice},
	// One of the events may request that traffic be suspended, and the event to resume it may be lost: the driver then
	// resets the device.
	{name: "events without end", on: []string{"amazon"}, do: func(s *session) error {
		for range 500 {
			group, syndrome := uint16(s.r.IntN(8)), uint16(s.r.IntN(4))
			if group != amazon.GroupFatal {
				s.device().model.(interface{ Post(amazon.Event) }).Post(amazon.Event{Group: group, Syndrome: syndrome})
			}
			time.Sleep(100 * time.Microsecond)
		}
		return nil
	}},
	{name: "fatal error", on: []string{"amazon", "mellanox"}, do: func(s *session) error {
		return s.noticed(func() {
			switch m := s.device().model.(type) {
			case *enasim.Model:
				m.Fail()
			case *efasim.Model:
				m.Fail()
			case *mlx5sim.Model:
				m.Fatal(uint8(1 + s.r.IntN(15)))
			case *mlx4sim.Model:
				m.Catastrophe(1 + s.r.Uint32N(0xffff))
			}
		})
	}},
	// The restart that follows may meet the same fault, and then the responder ends.
	{name: "admin queue stuck", on: []string{"amazon"}, ends: true, do: func(s *session) error {
		m := s.device().model.(interface{ StallAdmin(bool) })
		return s.noticed(func() { // until a scrape has requested statistics, and the driver has timed out
			m.StallAdmin(true)
			time.AfterFunc(time.Duration(4+s.r.IntN(4))*time.Second, func() { m.StallAdmin(false) })
		})
	}},
	// The command caused by a scrape is the last one until the driver's timeout expires and it restarts the device.
	{name: "firmware stuck", on: []string{"mellanox"}, do: func(s *session) error {
		f, d := s.device().firmware, time.Second+time.Duration(s.r.Int64N(int64(2*time.Second)))
		s.note("for %v", d.Round(time.Millisecond))
		return s.noticed(func() {
			f.Withhold.Store(true)
			time.AfterFunc(d, func() { f.Withhold.Store(false) })
		})
	}},
	{name: "send completion with error", on: []string{"mellanox"}, do: func(s *session) error {
		syndrome := uint8([]int{1, 2, 4, 5, 6, 0x10, 0x22}[s.r.IntN(7)])
		s.note("%#x", syndrome)
		m := s.device().model.(interface{ FailNextSend(uint8) })
		s.device().port.Between(func() { m.FailNextSend(syndrome) })
		return nil
	}},
	{name: "receive completion with error", on: []string{"mellanox"}, do: func(s *session) error {
		m := s.device().model.(interface{ FailNextReceive(uint8) })
		return s.noticed(func() { s.device().port.Between(func() { m.FailNextReceive(1) }) })
	}},
	{name: "pages asked for", on: []string{"mlx5"}, do: func(s *session) error {
		n := 1 + s.r.IntN(200)
		s.note("%d", n)
		s.device().model.(*mlx5sim.Model).AskPages(n)
		return nil
	}},
	// EFA devices do not guarantee keep-alive events, so its driver does not rely on them.
	{name: "keep-alive missed", on: []string{"efa"}, do: func(s *session) error {
		m := s.device().model.(*efasim.Model)
		m.WithholdKeepAlive(true)
		s.for_(time.Second, 3*time.Second)
		m.WithholdKeepAlive(false)
		return nil
	}},
	{name: "completion in a form that was not asked for", on: []string{"mlx5"}, do: func(s *session) error {
		m := s.device().model.(*mlx5sim.Model)
		return s.noticed(func() { s.device().port.Between(m.CompressNext) })
	}},
	{name: "keep-alive missed", on: []string{"ena"}, do: func(s *session) error {
		m := s.device().model.(*enasim.Model)
		defer m.WithholdKeepAlive(false)
		return s.noticed(func() { m.WithholdKeepAlive(true) })
	}},
	{name: "transmit completions held", on: []string{"ena"}, do: func(s *session) error {
		m := s.device().model.(*enasim.Model)
		defer m.HoldCompletions(false)
		return s.noticed(func() { m.HoldCompletions(true) })
	}},
	{name: "completion of a request that is not", on: []string{"amazon"}, do: func(s *session) error {
		tx := s.r.IntN(2) == 1
		s.note("transmit %v", tx)
		m := s.device().model.(interface {
			TamperCompletion(bool, func([]byte))
		})
		at := 0
		if _, ena := s.device().model.(*enasim.Model); ena && !tx {
			at = 6
		}
		return s.noticed(func() {
			m.TamperCompletion(tx, func(b []byte) {
				binary.LittleEndian.PutUint16(b[at:], 0xfff0)
			})
		})
	}},
	{name: "completions doubled", on: []string{"amazon"}, do: func(s *session) error {
		tx, n := s.r.IntN(2) == 1, 1+s.r.IntN(3)
		s.note("transmit %v, %d more", tx, n)
		m := s.device().model.(interface{ DuplicateCompletion(bool, int) })
		return s.noticed(func() { m.DuplicateCompletion(tx, n) })
	}},
	{name: "deaf device", on: []string{"efa"}, do: func(s *session) error {
		m := s.device().model.(*efasim.Model)
		m.DropReceives(true)
		s.for_(50*time.Millisecond, 2*time.Second)
		m.DropReceives(false)
		return nil
	}},
	{name: "senders forgotten", on: []string{"efa"}, do: func(s *session) error {
		m := s.device().model.(*efasim.Model)
		m.Forget(true)
		s.for_(50*time.Millisecond, time.Second)
		m.Forget(false)
		return nil
	}},
	// The restart that follows is refused too.
	{name: "commands refused", on: []string{"mellanox"}, ends: true, do: func(s *session) error {
		f, n := s.device().firmware, uint32(1+s.r.IntN(20))
		s.note("one in %d", n)
		f.Refuse.Store(n)
		if s.r.IntN(2) == 1 {
			s.note("over a reset")
			s.device().port.Reset()
		}
		s.for_(300*time.Millisecond, 2*time.Second) // long enough for at least one scrape
		f.Refuse.Store(0)
		return nil
	}},
	{name: "register reads without a response", on: []string{"amazon"}, ends: true, do: func(s *session) error {
		m := s.device().model.(interface{ Mute(bool) })
		m.Mute(true)
		if s.r.IntN(2) == 1 {
			s.note("over a reset")
			s.device().port.Reset()
		}
		s.for_(50*time.Millisecond, 2*time.Second)
		m.Mute(false)
		return nil
	}},
	{name: "admin completion that is wrong", on: []string{"amazon"}, ends: true, do: func(s *session) error {
		m := s.device().model.(interface{ TamperAdmin(func([]byte)) })
		at, bits := s.r.IntN(8), byte(1+s.r.IntN(255))
		s.note("byte %d, bits %#x", at, bits)
		m.TamperAdmin(func(b []byte) { b[at] ^= bits })
		s.scraper.fresh() // requests statistics, which is a command
		return nil
	}},
	{name: "admin commands refused", on: []string{"efa"}, ends: true, do: func(s *session) error {
		m, status := s.device().model.(*efasim.Model), uint8(1+s.r.IntN(7))
		s.note("with %d", status)
		m.FailAdmin(func(string) uint8 { return status })
		s.for_(300*time.Millisecond, 2*time.Second)
		m.FailAdmin(nil)
		return nil
	}},
	{name: "admin commands lost", on: []string{"efa"}, ends: true, do: func(s *session) error {
		m, one := s.device().model.(*efasim.Model), 1+s.r.IntN(3)
		s.note("one in %d", one)
		n := 0
		m.IgnoreAdmin(func(string) bool { n++; return n%one == 0 })
		s.for_(300*time.Millisecond, 2*time.Second)
		m.IgnoreAdmin(nil)
		return nil
	}},
	{name: "allowances exceeded", on: []string{"ena"}, do: func(s *session) error {
		m := s.device().model.(*enasim.Model)
		m.SetAllowance(enasim.Allowance{BandwidthIn: s.r.Uint64(), BandwidthOut: s.r.Uint64(), Packets: s.r.Uint64(),
			Conntrack: s.r.Uint64(), LinkLocal: s.r.Uint64()})
		s.scraper.fresh()
		return nil
	}},
	{name: "device that needs a reset", on: []string{"virtio"}, do: func(s *session) error {
		return s.noticed(s.device().model.(*virtiosim.Model).NeedReset)
	}},
	{name: "used entry that names no buffer", on: []string{"virtio"}, do: func(s *session) error {
		return s.noticed(s.device().model.(*virtiosim.Model).Lie)
	}},
	{name: "transmit queue stuck until a reset", on: []string{"virtio"}, do: func(s *session) error {
		return s.noticed(s.device().model.(*virtiosim.Model).Stall)
	}},
	// A restart sends the filters to the device in a command, and must fail if it gets no reply.
	{name: "control queue stuck", on: []string{"virtio"}, ends: true, do: func(s *session) error {
		m := s.device().model.(*virtiosim.Model)
		m.IgnoreControl(true)
		s.device().port.Reset()
		s.for_(500*time.Millisecond, 3*time.Second)
		m.IgnoreControl(false)
		return nil
	}},
	{name: "filters refused", on: []string{"virtio"}, do: func(s *session) error {
		m := s.device().model.(*virtiosim.Model)
		m.RefuseMAC(true)
		defer m.RefuseMAC(false)
		return s.noticed(s.device().port.Reset)
	}},
	{name: "features refused", on: []string{"virtio"}, ends: true, do: func(s *session) error {
		m := s.device().model.(*virtiosim.Model)
		m.RefuseFeatures(true)
		s.device().port.Reset()
		s.for_(200*time.Millisecond, 2*time.Second)
		m.RefuseFeatures(false)
		return nil
	}},
	{name: "link said to be down", on: []string{"virtio"}, do: func(s *session) error {
		m := s.device().model.(*virtiosim.Model)
		for range 1 + s.r.IntN(5) {
			m.PretendNoLink(true)
			s.for_(10*time.Millisecond, 400*time.Millisecond)
			m.PretendNoLink(false)
			time.Sleep(time.Duration(s.r.IntN(200)) * time.Millisecond)
		}
		return nil
	}},
	// Our drivers enable no interrupts, so none can be lost, but a device may still raise them.
	{name: "interrupts that nobody enabled", on: []string{"model"}, do: func(s *session) error {
		d := s.device()
		vectors := max(1, d.port.Config().MSIXVectors)
		for range 200 {
			d.port.Between(func() {
				for range 50 {
					d.faulty.Raise(s.r.IntN(vectors))
				}
			})
			time.Sleep(time.Millisecond)
		}
		return nil
	}},
	// Over vfio-user the driver waits for the reply to each register access.
	{name: "register accesses answered late", on: []string{"model"}, do: func(s *session) error {
		d := s.device()
		for range 1 + s.r.IntN(5) {
			late := time.Duration(s.r.Int64N(int64(400 * time.Millisecond)))
			s.note("by %v", late.Round(time.Millisecond))
			d.port.Hold(func() { time.Sleep(late) })
			time.Sleep(time.Duration(s.r.IntN(100)) * time.Millisecond)
		}
		return nil
	}},
	{name: "register accesses not answered", on: []string{"model"}, ends: true, do: func(s *session) error {
		d, held := s.device(), proto.Timeout+time.Second
		s.note("for %v", held)
		d.port.Hold(func() { time.Sleep(held) })
		return nil
	}},
	{name: "receiver switched off by somebody else", on: []string{"ixgbe"}, do: func(s *session) error {
		return s.noticed(func() { _ = s.device().port.WriteBAR(0, 0x03000, make([]byte, 4)) }) // RXCTRL
	}},
	{name: "EEPROM that is wrong", on: []string{"ixgbe"}, ends: true, do: func(s *session) error {
		m := s.device().model.(*ixgbesim.Model)
		s.device().port.Between(m.CorruptEEPROM)
		s.device().port.Reset()
		s.for_(500*time.Millisecond, 2*time.Second)
		s.device().port.Between(m.CorruptEEPROM) // the same bit again
		return nil
	}},
}

// garbage returns bytes that are not valid vfio-user messages, or nearly valid ones.
func garbage(r *rand.Rand, n int) []byte {
	b := make([]byte, n+16)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	// a header that may be accepted: identifier, command, size, flags (vfio-user's specification, "Message header")
	if r.IntN(2) == 1 {
		binary.LittleEndian.PutUint16(b[2:], uint16(1+r.IntN(16)))
		binary.LittleEndian.PutUint32(b[4:], uint32(16+r.IntN(len(b))))
		binary.LittleEndian.PutUint32(b[8:], uint32(r.IntN(3)))
	}
	return b
}

// malformedDevice starts the responder on a socket whose server does not speak vfio-user correctly.
func malformedDevice(s *session) error {
	d := s.device()
	if err := d.server.Close(); err != nil {
		return err
	}
	sock, err := net.Listen("unix", d.path)
	if err != nil {
		return err
	}
	seed := s.r.Uint64()
	var asked atomic.Int64
	go func() {
		for n := uint64(0); ; n++ {
			c, err := sock.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			go answerWrongly(c, rand.New(rand.NewPCG(seed, n)))
		}
	}()
	want := int64(1 + s.r.IntN(6))
	s.note("%d starts", want)
	ends := s.proc.endings()
	err = s.until("the end of responders whose device is none", func() bool {
		return asked.Load() >= want && int64(s.proc.endings()-ends) >= want
	})
	sock.Close()
	if err == nil {
		err = d.listen()
	}
	for _, e := range s.proc.since(ends) {
		if e.how != "exit 1" && e.how != "exit 0" {
			return fmt.Errorf("a device that is none: %s", lastLine(e))
		}
	}
	return err
}

// answerWrongly handles one connection of a malformed device.
func answerWrongly(c net.Conn, r *rand.Rand) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Duration(1+r.IntN(1000)) * time.Millisecond))
	way := r.IntN(4)
	in := make([]byte, 64<<10)
	for {
		n, err := c.Read(in)
		if err != nil || way == 0 { // disconnects immediately
			return
		}
		if way == 1 { // sends nothing until the deadline
			continue
		}
		out := garbage(r, r.IntN(200))
		if way == 2 && n >= 16 { // a reply to the request, with a random body
			copy(out, in[:16])
			binary.LittleEndian.PutUint32(out[4:], uint32(len(out)))
			binary.LittleEndian.PutUint32(out[8:], proto.FlagReply)
			binary.LittleEndian.PutUint32(out[12:], 0)
			if binary.LittleEndian.Uint16(in[2:]) == uint16(proto.CmdVersion) {
				out = append(out[:16], proto.VersionBody()...)
				binary.LittleEndian.PutUint32(out[4:], uint32(len(out)))
			}
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}
