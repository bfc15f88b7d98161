package route

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

// Three requests go to the known MAC, those after them to all hosts, and no more than one a second of these. After a
// reply it begins again.
func TestReachability(t *testing.T) {
	for _, ip := range [][2]netip.Addr{four, six} {
		near, far := NewNeighbour(ip[0], macA), NewNeighbour(ip[1], macB)
		r := NewReachability(near, ip[1])
		to := func(frame []byte) string {
			switch {
			case frame == nil:
				return "-"
			case far.Answer(bytes.Clone(frame)) == nil:
				t.Fatalf("%v: not answered: %x", ip[1], frame)
			case [6]byte(frame) == macB:
				return "u"
			}
			return "m" // multicast
		}
		got := ""
		now := time.Unix(1e9, 0)
		for range 36 {
			got += to(r.Ask(macB, now))
			now = now.Add(50 * time.Millisecond)
		}
		if want := "u-u-u-m-------------------m---------"; got != want {
			t.Errorf("%v: %s, want %s", ip[1], got, want)
		}
		r.Confirm()
		if got := to(r.Ask(macB, now)); got != "u" {
			t.Errorf("%v: after a reply %s, want u", ip[1], got)
		}
	}
}

// ARP replies and requests and neighbour advertisements tell who has which MAC.
func TestAnnounced(t *testing.T) {
	for _, ip := range [][2]netip.Addr{four, six} {
		near, far := NewNeighbour(ip[0], macA), NewNeighbour(ip[1], macB)
		q := bytes.Clone(near.question(ip[1]))
		reply := bytes.Clone(far.Answer(q))
		if of, mac, ok := Announced(reply); !ok || of != ip[1] || mac != macB {
			t.Errorf("%v, %x, %t", of, mac, ok)
		}
		if of, mac, ok := Announced(q); ok != ip[0].Is4() || ok && (of != ip[0] || mac != macA) {
			t.Errorf("a request: %v, %x, %t", of, mac, ok)
		}
		for n := range reply[:len(reply)-1] {
			if of, _, ok := Announced(reply[:n]); ok && (ip[0].Is6() || n < 42) {
				t.Errorf("%d bytes of a reply: %v", n, of)
			}
		}
		reply[len(reply)-6] |= 1 // of the option
		reply[22] |= 1           // of the ARP packet, or of the IPv6 source
		if _, mac, ok := Announced(reply); ok {
			t.Errorf("a multicast address: %x", mac)
		}
		if n := testing.AllocsPerRun(100, func() { Announced(q) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
