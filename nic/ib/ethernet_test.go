package ib

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var farStation, ourStation = Station(3, 0x49), Station(0, 0x50)

func TestStations(t *testing.T) {
	check.Equal(t, Station(0x1234, 0x56789A), [6]byte{2, 0x12, 0x34, 0x56, 0x78, 0x9A}, "%x")
	if lid, qpn, ok := ParseStation(Station(0xBFFF, 0xFFFFFE)); lid != 0xBFFF || qpn != 0xFFFFFE || !ok {
		t.Errorf("%x, %x, %v", lid, qpn, ok)
	}
	for _, m := range [][6]byte{ourStation, {4, 0, 1}, Station(0xC000, 1), {0x33, 0x33}} {
		if _, _, ok := ParseStation(m); ok {
			t.Errorf("%x is a station", m)
		}
	}
	for want, g := range map[[6]byte]GID{
		{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}:       BroadcastGroup(ScopeLink, 1),
		{0x33, 0x33, 0xFF, 0x12, 0x34, 0x56}:       {0xFF, 0x12, 0x60, 0x1B, 12: 0xFF, 13: 0x12, 14: 0x34, 15: 0x56},
		{0x01, 0x00, 0x5E, 0x01, 0x02, 0x03}:       {0xFF, 0x12, 0x40, 0x1B, 12: 0x0F, 13: 0x81, 14: 2, 15: 3},
		{0x33, 0x33, 0x00, 0x00, 0x00, 0x00 | 0x1}: {0xFF, 0x12, 0x60, 0x1B, 15: 1},
	} {
		check.Equal(t, GroupMAC(g), want, fmt.Sprintf("%x", g)+" is %x on Ethernet")
	}
}

// toFrame is ToEthernet to a station or group, of a packet that has a frame.
func toFrame(t *testing.T, packet []byte, to, from [6]byte) ([]byte, Address) {
	t.Helper()
	f := make([]byte, 200)
	n, sender, ok := ToEthernet(f, packet, to, from)
	must.Equal(t, ok, true, "it has a frame: %v")
	return f[:n], sender
}

// toPacket is FromEthernet of a frame that has a packet.
func toPacket(t *testing.T, frame []byte, own, peer Address) []byte {
	t.Helper()
	p := make([]byte, 200)
	n, ok := FromEthernet(p, frame, own, peer)
	must.Equal(t, ok, true, "it has a packet: %v")
	return p[:n]
}

// refused fails the test if a packet has a frame.
func refused(t *testing.T, what string, packet []byte) {
	t.Helper()
	if _, _, ok := ToEthernet(make([]byte, 300), packet, ourStation, farStation); ok {
		t.Errorf("%s has a frame", what)
	}
}

// A request over IPoIB becomes one over Ethernet, and its reply becomes one over IPoIB, byte for byte.
func TestARPBothWays(t *testing.T) {
	far, ours := NewAddress(0x49, farGID), NewAddress(0x50, ourGID)
	request := hexed(t, "0806 0000 0020 0800 14 04 0001"+"00000049 fe80000000000000 0002c90300abcde1"+"0a000001"+
		strings.Repeat("00", 20)+"0a000002")
	f, sender := toFrame(t, request, [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, farStation)
	check.Same(t, f, hexed(t, "ffffffffffff 020003000049 0806 0001 0800 06 04 0001"+
		"020003000049 0a000001 000000000000 0a000002"), "% x")
	check.Equal(t, sender, far, "from % x")
	reply := hexed(t, "020003000049 020000000050 0806 0001 0800 06 04 0002"+
		"020000000050 0a000002 020003000049 0a000001")
	padded := append(bytes.Clone(reply), make([]byte, 18)...)
	want := hexed(t, "0806 0000 0020 0800 14 04 0002"+"00000050 fe80000000000000 0002c90300123457"+"0a000002"+
		"00000049 fe80000000000000 0002c90300abcde1"+"0a000001")
	check.Same(t, toPacket(t, padded, ours, far), want, "% x")
	f, sender = toFrame(t, want, farStation, ourStation) // as the requester sees it
	check.Same(t, f, reply, "% x")
	check.Equal(t, sender, ours, "from % x")
	check.Same(t, toPacket(t, f, ours, far), want, "% x")
	padded[21] = 1 // a request does not name the address that it asks for
	check.Same(t, toPacket(t, padded, ours, far)[36:], append(make([]byte, 20), 10, 0, 0, 1), "% x")
	for at, v := range map[int]byte{4: 1, 5: 1, 7: 1, 8: 6, 9: 16, 11: 3} {
		bad := bytes.Clone(request)
		bad[at] = v
		refused(t, fmt.Sprint("byte ", at), bad)
	}
}

func solicit(t *testing.T) []byte {
	p := hexed(t, "86dd 0000 60000000 0038 3a ff"+"fd000000000000000000000000000001"+"ff0200000000000000000001ff000002"+
		"87 00 0000 00000000 fd000000000000000000000000000002"+"0e01010203040506"+
		"0103 0000 00000049 fe80000000000000 0002c90300abcde1")
	sum(p[4:])
	return p
}

// sum sets the correct checksum of an ICMPv6 message.
func sum(p []byte) {
	m := p[40:]
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], ^cksum.Sum(m, cksum.Sum(p[8:40], uint16(58+len(m)))))
}

func TestNeighbourBothWays(t *testing.T) {
	far, ours := NewAddress(0x49, farGID), NewAddress(0x50, ourGID)
	f, sender := toFrame(t, solicit(t), [6]byte{0x33, 0x33, 0xFF, 0, 0, 2}, farStation)
	want := hexed(t, "3333ff000002 020003000049 86dd 60000000 0028 3a ff"+"fd000000000000000000000000000001"+
		"ff0200000000000000000001ff000002"+
		"87 00 0000 00000000 fd000000000000000000000000000002"+"0e01010203040506"+"0101 020003000049")
	sum(want[14:])
	check.Same(t, f, want, "% x")
	check.Equal(t, sender, far, "from % x")
	advert := bytes.Clone(want)
	advert[54], advert[58], advert[86] = 136, 0x60, 2 // the answer to it
	copy(advert[88:], ourStation[:])
	sum(advert[14:])
	over := hexed(t, "86dd 0000 60000000 0038 3a ff"+"fd000000000000000000000000000001"+
		"ff0200000000000000000001ff000002"+
		"88 00 0000 60000000 fd000000000000000000000000000002"+"0e01010203040506"+
		"0203 0000 00000050 fe80000000000000 0002c90300123457")
	sum(over[4:])
	check.Same(t, toPacket(t, advert, ours, far), over, "% x")
	wrong := solicit(t)
	wrong[47] ^= 1
	if f, _ = toFrame(t, wrong, ourStation, farStation); bytes.Equal(f[56:58], want[56:58]) {
		t.Error("a wrong checksum became right")
	}
	for what, spoil := range map[string]func(b []byte) []byte{
		"an option of Ethernet's length": func(b []byte) []byte { b[77] = 1; return b },
		"an option of no length":         func(b []byte) []byte { b[69] = 0; return b },
		"a longer one":                   func(b []byte) []byte { b[77] = 4; return b },
		"a trailer":                      func(b []byte) []byte { return append(b, 0, 0) },
		"too short":                      func(b []byte) []byte { b = b[:4+40+20]; b[9] = 20; return b },
	} {
		refused(t, what, spoil(solicit(t)))
	}
}

// No part of a packet or frame, and no room that is too small, gives a whole one.
func TestCut(t *testing.T) {
	own, peer := NewAddress(0x50, ourGID), NewAddress(0x49, farGID)
	arp := hexed(t, "0806 0000 0020 0800 14 04 0001"+"00000049 fe80000000000000 0002c90300abcde1"+"0a000001"+
		strings.Repeat("00", 20)+"0a000002")
	udp := hexed(t, "0800 0000 4500001d 00004000 40110000 0a000001 0a000002 0007000700090000 55")
	for _, packet := range [][]byte{arp, solicit(t), udp} {
		frame, _ := toFrame(t, packet, ourStation, farStation)
		for n := range len(packet) {
			_, _, ok := ToEthernet(make([]byte, 300), packet[:n], ourStation, farStation)
			if ok && (n < EncapSize || Neighbour(packet[:n])) {
				t.Errorf("%d of %d bytes of a packet have a frame", n, len(packet))
			}
			_, _, ok = ToEthernet(make([]byte, HeaderSize-EncapSize+n), packet, ourStation, farStation)
			check.Equal(t, ok, false, fmt.Sprintf("room for %d of %d bytes: %%t", n, len(packet)))
			_, ok = FromEthernet(make([]byte, n), frame, own, peer)
			check.Equal(t, ok, false, fmt.Sprintf("room for %d of %d bytes of the packet: %%t", n, len(packet)))
		}
		back := make([]byte, len(packet))
		if n, ok := FromEthernet(back, frame, own, peer); !ok || n != len(packet) {
			t.Errorf("%d bytes, %t, of a packet of %d", n, ok, len(packet))
		}
		least := map[byte]int{0xdd: len(frame), 6: len(frame), 0: HeaderSize + 20}[packet[1]]
		for n := range least {
			_, ok := FromEthernet(make([]byte, 300), frame[:n], own, peer)
			header := packet[1] == 0xdd && n == HeaderSize+40 // of IPv6, which is not looked into
			check.Equal(t, ok, header, fmt.Sprintf("%d of %d bytes of a frame: %%t", n, len(frame)))
		}
		check.Equal(t, Neighbour(packet), packet[1] != 0, "carries addresses: %t")
		check.Equal(t, Neighbour(packet[:EncapSize-1]), false, "of a cut header: %t")
	}
	check.Equal(t, Neighbour(solicit(t)[:EncapSize+40]), false, "without a message: %t")
}

// For other packets the header is replaced and padding removed; anything but IP and ARP has no frame.
func TestOtherPackets(t *testing.T) {
	echo := hexed(t, "0800 0000 4500 001c 0001 0000 40 01 0000 0a000001 0a000002 0800 f7ff 0000 0000")
	f, sender := toFrame(t, echo, ourStation, farStation)
	check.Same(t, f, slices.Concat(ourStation[:], farStation[:], echo[:2], echo[4:]), "% x")
	check.Equal(t, sender, Address{}, "from % x")
	check.Same(t, toPacket(t, f[:60], Address{}, Address{}), echo, "% x")
	for _, kind := range []string{"8100", "88a8", "0000", "86de"} {
		refused(t, kind, append(hexed(t, kind), echo[2:]...))
		if _, ok := FromEthernet(make([]byte, 100), append(append(bytes.Clone(f[:12]), hexed(t, kind)...), echo[4:]...),
			Address{}, Address{}); ok {
			t.Error(kind)
		}
	}
	if _, _, ok := ToEthernet(make([]byte, 41), echo, ourStation, farStation); ok {
		t.Error("no room")
	}
}

func TestTranslationAllocatesNothing(t *testing.T) {
	far, ours := NewAddress(0x49, farGID), NewAddress(0x50, ourGID)
	f, p, q := make([]byte, 200), make([]byte, 200), solicit(t)
	if n := testing.AllocsPerRun(100, func() {
		n, _, ok := ToEthernet(f, q, ourStation, farStation)
		if _, back := FromEthernet(p, f[:n], ours, far); !ok || !back {
			t.Fatal("no frame")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A frame keeps the meaning of its payload: converting it to a payload and back gives the same frame.
func FuzzEthernet(f *testing.F) {
	f.Add([]byte{8, 6, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1, 60: 0})
	f.Add([]byte{0x86, 0xDD, 0, 0, 0x60, 8: 0, 9: 56, 10: 58, 44: 135, 68: 14, 69: 1, 76: 1, 77: 3, 99: 0})
	own := NewAddress(0x50, ourGID)
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), 2048)]
		frame, payload, again := make([]byte, 14+len(b)), make([]byte, 4096+len(b)*3), make([]byte, 8192+len(b)*3)
		n, peer, ok := ToEthernet(frame, b, ourStation, farStation)
		if !ok {
			return
		}
		m, ok := FromEthernet(payload, frame[:n], own, peer)
		if !ok {
			return // IP shorter than its header
		}
		k, sender, ok := ToEthernet(again, payload[:m], ourStation, farStation)
		if !ok || sender != (Address{}) && sender != own || k > n || !bytes.Equal(again[:14], frame[:14]) {
			t.Fatalf("% x\n% x\n% x", b, frame[:n], again[:k])
		}
		if Neighbour(b) && !bytes.Equal(again[:k], frame[:n]) {
			t.Errorf("% x\n% x\n% x", b, frame[:n], again[:k])
		}
	})
}
