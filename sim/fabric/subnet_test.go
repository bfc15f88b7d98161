package fabric

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim"
)

// subnet is a fabric whose cards the test plays, and the text of what happens.
type subnet struct {
	*Fabric
	cards []*sim.Cable
	text  strings.Builder
	mute  bool   // agents do not answer
	state byte   // that agents report before they are configured
	bad   uint16 // status of agents' answers
}

func newSubnet() *subnet {
	s := &subnet{state: 2}
	a, near := sim.Pair()
	b, far := sim.Pair()
	s.cards = []*sim.Cable{near, far}
	s.Fabric = New(func(format string, args ...any) { fmt.Fprintf(&s.text, "complaint: "+format+"\n", args...) }, a,
		b)
	return s
}

// short is bytes in hexadecimal, with # and a number for repeated ones.
func short(b []byte) string {
	out := ""
	for i := 0; i < len(b); {
		n := 1
		for i+n < len(b) && b[i+n] == b[i] {
			n++
		}
		if out += fmt.Sprintf("%02x", b[i]); n > 3 {
			out += fmt.Sprintf("#%d ", n)
		} else {
			n = 1
		}
		i += n
	}
	return out
}

// settle moves packets until none is left. Agents answer the manager.
func (s *subnet) settle(what string) {
	fmt.Fprintf(&s.text, "\n%s\n", what)
	rounds := 0 // the manager asks again and again where the answers never suffice
	for moved := true; moved && rounds < 8; rounds++ {
		moved = s.Step()
		for i, c := range s.cards {
			for b := c.Recv(0); b != nil; b = c.Recv(0) {
				moved = true
				fmt.Fprintf(&s.text, "card %d gets %s\n", i, short(b))
				p, ok := s.parse(b)
				if !ok || p.VL != 15 || s.mute {
					continue
				}
				m := bytes.Clone(p.Payload)
				m[3] = 0x81
				be.PutUint16(m[4:], 0x8000|s.bad)
				switch {
				case be.Uint16(m[16:]) == 0x11:
					be.PutUint64(m[64+20:], uint64(0x0200+i))
				case p.Payload[3] == 1:
					m[64+32], m[64+51] = 0x10|s.state, 8
				}
				c.Send(0, Packet{VL: 15, DLID: 0xffff, SLID: 0xffff, PKey: 0xffff, Payload: m}.bytes())
			}
		}
	}
	for _, p := range s.Received() {
		fmt.Fprintf(&s.text, "the host gets %+v\n", p)
	}
	for i, p := range s.Ports {
		fmt.Fprintf(&s.text, "port %d: guid %x state %d asked %t\n", i, p.guid, p.state, p.asked)
	}
}

// ask sends a request to subnet administration from a card.
func (s *subnet) ask(card int, method byte, attr uint16, mask uint64, data []byte, change func(*Packet)) {
	m := make([]byte, 256)
	m[0], m[1], m[2], m[3] = 1, 3, 2, method
	be.PutUint16(m[16:], attr)
	be.PutUint64(m[48:], mask)
	copy(m[56:], data)
	p := Packet{DLID: 1, SLID: uint16(2 + card), PKey: 0xffff, DQP: 1, SQP: 1, QKey: 0x80010000, Payload: m}
	if change != nil {
		change(&p)
	}
	s.cards[card].Send(0, p.bytes())
}

// Everything that a subnet sends, from the configuration of ports to multicast, and its complaints.
func TestSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubnet()
		gid := func(i int) []byte { g := s.Ports[i].GID(s.Fabric); return g[:] }
		member := func(group [16]byte, card int, state byte) []byte {
			d := append(append(group[:], gid(card)...), make([]byte, 168)...)
			be.PutUint32(d[32:], 0x1234)
			d[48] = state
			return d
		}
		s.Absent = true
		s.settle("no manager")
		s.Absent, s.mute = false, true
		s.settle("agents that do not answer")
		time.Sleep(time.Second)
		s.settle("a second later")
		time.Sleep(time.Nanosecond)
		s.mute, s.state = false, 1
		s.bad = 0x1c
		s.settle("agents that refuse")
		s.bad = 0
		for i := range s.Ports {
			s.Ports[i].Forget()
		}
		s.cards[1].SetUp(false)
		s.state = 2
		s.settle("one card's link is up")
		s.cards[1].SetUp(true)
		s.settle("both")
		s.Sweep = time.Second
		s.state = 1
		time.Sleep(time.Second)
		s.settle("no sweep yet")
		time.Sleep(time.Nanosecond)
		s.state = 3
		s.settle("a sweep finds ports that are not active")
		s.Sweep = 0
		s.Configure(s.Ports[0], 4, 0x80)
		s.settle("reregister")
		s.cards[0].Send(0, Packet{VL: 15, PKey: 0xffff, Payload: make([]byte, 256)}.bytes())
		s.cards[0].Send(0, Packet{VL: 15, PKey: 0xffff, Payload: append(make([]byte, 3), 0x81)}.bytes())
		s.settle("a trap, and a short answer")

		other := [16]byte{0xff, 0x12, 15: 9}
		for i := range s.cards {
			s.ask(i, 2, 0x38, 0, member(Broadcast, i, 1), nil)
		}
		s.ask(0, 2, 0x38, 0, member(other, 0, 1), nil)
		s.ask(0, 2, 0x38, 1<<2, member(other, 0, 3), nil)
		s.ask(0, 2, 0x38, 0, member(other, 1, 0), nil)
		s.settle("joins")
		for _, g := range [][16]byte{Broadcast, other, {1}} {
			fmt.Fprintf(&s.text, "%d members, joined %d times\n", s.Multicast(g, []byte("all")), s.Joins[g])
		}
		s.Send(1, 0x49, []byte("five5"), GRH(s.HostGID(), [16]byte(gid(1))))
		s.Inject(0, Packet{VL: 3, SL: 4, DLID: 5, SLID: 6, PKey: 7, DQP: 8, SQP: 9, QKey: 10, Payload: []byte("x")})
		s.settle("from the host")
		s.cards[0].Send(0, Packet{DLID: 0xc000, SLID: 2, PKey: 0xffff, GRH: GRH([16]byte(gid(0)), Broadcast),
			Payload: []byte("hi")}.bytes())
		s.cards[0].Send(0, Packet{DLID: 3, SLID: 2, PKey: 0xffff, DQP: 0x50, SQP: 0x51, QKey: 5,
			Payload: []byte("to card 1")}.bytes())
		s.cards[0].Send(0, Packet{DLID: 1, SL: 2, SLID: 2, PKey: 0xffff, DQP: HostQP, SQP: 0x51, QKey: 5,
			Payload: []byte("to the host")}.bytes())
		s.cards[0].Send(0, Packet{DLID: 9, SLID: 2, PKey: 0xffff, Payload: []byte("to nobody")}.bytes())
		s.settle("from a card")
		host := s.HostGID()
		for _, to := range [][]byte{gid(1), host[:], make([]byte, 16)} {
			s.ask(0, 1, 0x35, 0, append(make([]byte, 8), to...), nil)
		}
		s.ask(1, 0x15, 0x38, 0, member(Broadcast, 1, 1), nil)
		s.ask(1, 0x15, 0x38, 0, member([16]byte{1}, 1, 1), nil)
		s.ask(1, 1, 0x99, 0, nil, nil)
		s.settle("paths, leaving, and an unknown attribute")
		s.Refuse = func(m []byte) uint16 { return uint16(m[17]) }
		s.ask(0, 1, 0x35, 0, nil, nil)
		s.settle("refusal")
		s.DropReceives = true
		s.ask(0, 1, 0x35, 0, nil, nil)
		s.settle("no answer")
		fmt.Fprintf(&s.text, "%d paths, %d leaves, %d members\n", s.Paths, s.Leaves, len(s.Groups[Broadcast].Members))

		for _, change := range []func(*Packet){func(p *Packet) { p.QKey++ }, func(p *Packet) { p.SQP++ },
			func(p *Packet) { p.PKey = 0x7ffe }, func(p *Packet) { p.Payload = p.Payload[:255] },
			func(p *Packet) { p.Payload[0]++ }, func(p *Packet) { p.Payload[1]++ },
			func(p *Packet) { p.Payload[2]++ },
			func(p *Packet) { p.SLID++ }, func(p *Packet) { p.PKey = 0x7fff }} {
			s.ask(0, 1, 0x35, 0, nil, change)
		}
		whole := Packet{DLID: 9, SLID: 2, PKey: 0xffff, Payload: []byte("1234")}.bytes()
		global := Packet{DLID: 9, SLID: 2, GRH: GRH(host, other), PKey: 0xffff, Payload: nil}.bytes()
		none := Packet{DLID: 9, SLID: 2, PKey: 0xffff}.bytes()
		padded := bytes.Clone(none)
		padded[9] |= 1 << 4
		wrong := bytes.Clone(whole)
		wrong[30]++
		for _, b := range [][]byte{whole[:28], whole[:32], wrong, padded, reseal(padded), none, global,
			reseal(global[:68]), append(whole, 0, 0, 0, 0)} {
			s.cards[0].Send(0, b)
		}
		s.settle("what no card may send")
		golden.Equal(t, "testdata/subnet.txt", s.text.String())
	})
}

// reseal corrects the length and the checksum of a packet.
func reseal(b []byte) []byte {
	b = bytes.Clone(b[:len(b)-4])
	be.PutUint16(b[4:], uint16(len(b)+4)/4)
	return append(b, le32(icrc(b))...)
}

func le32(v uint32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }
