package watch

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
)

// packet is an IP packet with the first 8 bytes of its payload: a type of ICMP and its code, or a pair of ports.
func packet(from, to netip.Addr, proto byte, first uint32) []byte {
	b := append([]byte{0x45, 8: 64, 9: proto, 11: 0}, append(from.AsSlice(), to.AsSlice()...)...)
	if from.Is6() {
		b = append([]byte{0x60, 6: proto, 7: 64}, append(from.AsSlice(), to.AsSlice()...)...)
	}
	return append(binary.BigEndian.AppendUint32(b, first), make([]byte, 4)...)
}

// A reply frame has the flow of its sender, an ICMP error that of the probe that it quotes. Frames of other kinds, and
// those that are cut anywhere, have none.
func TestKeys(t *testing.T) {
	for _, v := range []struct {
		kind             uint16
		a, b, other      netip.Addr
		icmp, reply      byte
		errors, datagram []byte
	}{
		{typeIPv4, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.9"),
			unix.IPPROTO_ICMP, 0, []byte{3, 11, 12}, nil},
		{typeIPv6, netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::9"),
			unix.IPPROTO_ICMPV6, 129, []byte{1, 2, 3, 4}, nil},
	} {
		frame := func(ip []byte, more ...byte) []byte {
			return append(append(binary.BigEndian.AppendUint16(make([]byte, 12), v.kind), ip...), more...)
		}
		const ports = 50_001<<16 | 862 // of a probe, from our port to the target's
		none := flowKey{}
		echo, datagram := flowKey{from: v.b}, flowKey{from: v.b, udp: true, port: 862}
		kinds := func(b []byte, at int, want map[byte]flowKey) {
			for kind := range 256 {
				b[at] = byte(kind)
				k, ok := keyOf(b)
				if _, known := want[byte(kind)]; ok != known || ok && k != want[byte(kind)] {
					t.Errorf("%v, byte %d is %d: %v, %t", v.a, at, kind, k, ok)
				}
			}
		}
		cut := func(b []byte, least int, want flowKey) {
			for n := range len(b) + 1 {
				k, ok := keyOf(b[:n])
				if ok != (n >= least) || ok && k != want {
					t.Errorf("%v, %d bytes of %d: %v, %t", v.a, n, len(b), k, ok)
				}
			}
		}
		header := len(packet(v.a, v.b, 0, 0)) - 8
		reply := frame(packet(v.b, v.a, v.icmp, uint32(v.reply)<<24))
		cut(reply, len(reply), echo)
		udp := frame(packet(v.b, v.a, unix.IPPROTO_UDP, 862<<16|50_001))
		cut(udp, len(udp), datagram)
		protocol := ip4 + 9
		if v.a.Is6() {
			protocol = ip4 + 6
		}
		kinds(udp, protocol, map[byte]flowKey{unix.IPPROTO_UDP: datagram})
		kinds(reply, protocol, map[byte]flowKey{v.icmp: echo, unix.IPPROTO_UDP: {from: v.b, udp: true,
			port: uint16(v.reply) << 8}})
		for quoted, key := range map[byte]flowKey{v.icmp: echo, unix.IPPROTO_UDP: datagram} {
			b := frame(packet(v.other, v.a, v.icmp, uint32(v.errors[0])<<24), packet(v.a, v.b, quoted, ports)...)
			cut(b, len(b)-4, key)
			all := map[byte]flowKey{v.reply: {from: v.other}}
			for _, kind := range v.errors {
				all[kind] = key
			}
			kinds(b, ip4+header, all)
		}
		binary.BigEndian.PutUint16(udp[12:], 0x0806)
		cut(udp, len(udp)+1, none)
	}
}

// A reflector's count tells the loss of each direction, with the limits of what a network duplicates.
func TestDirectionByNumbers(t *testing.T) {
	for _, c := range []struct {
		replies string
		want    string   // lost there, lost back, restarts
		numbers []uint32 // of the sender and of the reflector, for each reply
	}{
		{"none lost", "0 0 0", []uint32{2, 1, 3, 2, 4, 3}},
		{"two there", "2 0 0", []uint32{2, 1, 5, 2}},
		{"two back", "0 2 0", []uint32{2, 1, 5, 4}},
		{"one each way", "1 1 0", []uint32{2, 1, 5, 3}},
		{"an overtaken reply", "0 0 0", []uint32{2, 1, 4, 3, 3, 2, 5, 4}},
		{"an overtaken reply, and nothing lost back", "1 0 0", []uint32{2, 1, 4, 2, 3, 1, 5, 3}},
		{"as many copies as may be", "0 0 0", []uint32{2, 1, 3, 18}},
		{"a copy more", "0 0 1", []uint32{2, 1, 3, 19}},
		{"a count that stands still", "0 0 1", []uint32{2, 1, 3, 1}},
		{"a count that begins again", "0 1 1", []uint32{2, 1, 3, 0, 5, 2}},
		{"numbers that wrap", "1 2 0", []uint32{1<<32 - 2, 1<<32 - 3, 2, 0}},
		{"before the skipped number", "0 0 0", []uint32{0, 5, 1, 9, 2, 1, 3, 2}},
	} {
		var d direction
		for i := 0; i < len(c.numbers); i += 2 {
			d.plain(c.numbers[i], c.numbers[i+1])
		}
		check.Equal(t, fmt.Sprint(d.forward, d.backward, d.restarts), c.want, c.replies+": %s")
		check.Equal(t, d.stateful, true, c.replies+": stateful %t")
	}
}
