package ixgbesim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/must"
)

// transport is a TCP or a UDP header.
type transport interface {
	gopacket.SerializableLayer
	SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
}

func build(t testing.TB, v6 bool, l4 transport, payload []byte) []byte {
	t.Helper()
	eth := &layers.Ethernet{DstMAC: []byte{2, 0, 0, 0, 0, 1}, SrcMAC: []byte{2, 0, 0, 0, 0, 9},
		EthernetType: layers.EthernetTypeIPv4}
	proto := layers.IPProtocolTCP
	if _, udp := l4.(*layers.UDP); udp {
		proto = layers.IPProtocolUDP
	}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, IHL: 5, TTL: 9, Id: 77, Protocol: proto, SrcIP: []byte{10, 0, 0, 9},
		DstIP: []byte{10, 0, 0, 1}}
	if v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: proto,
			SrcIP: bytes.Repeat([]byte{0x20, 1}, 8), DstIP: bytes.Repeat([]byte{0xfd, 7}, 8)}
	}
	must.OK(t, l4.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	o := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	must.OK(t, gopacket.SerializeLayers(b, o, eth, ip, l4, gopacket.Payload(payload)))
	return b.Bytes()
}

func tcp() *layers.TCP {
	return &layers.TCP{SrcPort: 1000, DstPort: 2000, Seq: 0xfffffff0, ACK: true, PSH: true, FIN: true, Window: 500}
}

func udp() *layers.UDP { return &layers.UDP{SrcPort: 1000, DstPort: 7} }

// The receiver's checks verify the sender's checksums, and gopacket's frames verify the receiver.
func TestReceiveChecksums(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	i := 0
	try := func(name string, f []byte, status, errs, kind uint32) {
		t.Helper()
		r.Arrive(f)
		d := r.rxDesc(i)
		i++
		got := binary.LittleEndian.Uint32(d[8:])
		if got&0xe0 != status || got>>30 != errs || binary.LittleEndian.Uint32(d)>>4&0xfff != kind {
			t.Errorf("%s: descriptor %x, want status %x errors %x type %x", name, d, status, errs, kind)
		}
	}
	f := build(t, false, tcp(), []byte("hello, receiver"))
	try("TCP", f, 0x60, 0, 0x11)
	f[60]++
	try("TCP broken", f, 0x60, 1, 0x11)
	f = build(t, false, udp(), []byte("odd"))
	try("UDP", f, 0x60, 0, 0x21)
	f[24]++
	try("IP broken", f, 0x60, 2, 0x21)
	f = build(t, false, udp(), []byte("none"))
	f[40], f[41] = 0, 0
	try("UDP without", f, 0x40, 0, 0x21)
	try("UDP over IPv6", build(t, true, udp(), []byte("six")), 0x20, 0, 0x24)
	try("TCP over IPv6", build(t, true, tcp(), make([]byte, 1000)), 0x20, 0, 0x14)
	try("no IP", frame(60), 0, 0, 0)
	f = build(t, false, udp(), make([]byte, 100))
	f[20] |= 0x20
	try("fragment", f, 0x40, 2, 0x01)
}

func TestInsertChecksums(t *testing.T) {
	r := openRig(t, Options{})
	for _, c := range []struct {
		name string
		v6   bool
		l4   transport
		tuc  uint32 // L4T and IPV4
		off  int
	}{
		{"TCP", false, tcp(), 1<<11 | 1<<10, 16},
		{"UDP", false, udp(), 1 << 10, 6},
		{"TCP over IPv6", true, tcp(), 1 << 11, 16},
		{"UDP over IPv6", true, udp(), 0, 6},
	} {
		want := build(t, c.v6, c.l4, []byte("payload of an odd length."))
		ipLen := 20
		if c.v6 {
			ipLen = 40
		}
		f := append([]byte(nil), want...)
		l4 := 14 + ipLen
		p := parse(f)
		binary.BigEndian.PutUint16(f[l4+c.off:], fold(p.pseudo(f, p.end-p.l4)))
		pop := uint32(1 << 9)
		if !c.v6 {
			f[24], f[25] = 0, 0
			pop |= 1 << 8
		}
		r.desc(uint64(14<<9|ipLen), 2<<20|1<<29|c.tuc, 0)
		r.desc(r.load(1, f), uint32(len(f))|advData|eop|rs, uint32(len(f))<<14|pop)
		r.kick()
		r.Sent(want, "%s", c.name)
	}
}

// Each segment must equal gopacket's.
func TestSegmentation(t *testing.T) {
	payload := make([]byte, 3*1000+17)
	for i := range payload {
		payload[i] = byte(i * 3)
	}
	for _, v6 := range []bool{false, true} {
		r := openRig(t, Options{})
		f := build(t, v6, tcp(), payload)
		ipLen, pop, tuc := 20, uint32(3<<8), uint32(1<<11|1<<10)
		if v6 {
			ipLen, pop, tuc = 40, 1<<9, 1<<11
		}
		l4 := 14 + ipLen
		p := parse(f)
		binary.BigEndian.PutUint16(f[l4+16:], fold(p.pseudo(f, 0)))
		if v6 {
			f[18], f[19] = 0, 0
		} else {
			f[16], f[17], f[24], f[25] = 0, 0, 0, 0
		}
		r.desc(uint64(14<<9|ipLen), 2<<20|1<<29|tuc, 1000<<16|20<<8)
		addr := r.load(1, f)
		cut := l4 + 20 + 500 // header and payload over two buffers
		r.desc(addr, uint32(cut)|advData|1<<31, uint32(len(payload))<<14|pop)
		r.desc(addr+uint64(cut), uint32(len(f)-cut)|advData|1<<31|eop|rs, 0)
		r.kick()
		for k := 0; k < 4; k++ {
			h := tcp()
			h.Seq += uint32(k * 1000)
			last := k == 3
			h.PSH, h.FIN = last, last
			part := payload[k*1000 : min((k+1)*1000, len(payload))]
			want := build(t, v6, h, part)
			if !v6 {
				binary.BigEndian.PutUint16(want[18:], uint16(77+k))
				want[24], want[25] = 0, 0
				binary.BigEndian.PutUint16(want[24:], ^fold(sum(want[14:34], 0)))
			}
			if len(want) < 60 {
				want = append(want, make([]byte, 60-len(want))...)
			}
			r.Sent(want, "IPv6 %v, segment %d", v6, k)
		}
		if r.Far.Recv(1<<40) != nil {
			t.Error("a segment too many")
		}
		r.Clean()
	}
}

func TestRSSQueues(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x1040, uint32(r.iova)+0x4000)
	r.wr(0x1044, uint32(r.iova>>32))
	r.second(2 | 1<<25)
	for i := range uint64(10) {
		r.wr(0x5c80+4*i, 0x12345678*uint32(i+1))
	}
	for i := range uint64(32) {
		r.wr(0x5c00+4*i, 0x01000100)
	}
	r.set(0x5000, 1<<13)
	r.wr(0x5818, 1|1<<17|1<<22)
	r.fill(40)
	for i := range 40 {
		binary.LittleEndian.PutUint64(r.mem[0x4000+16*i:], r.iova+rxBufs+uint64(40+i)*0x4000)
	}
	r.wr(0x1058, 40)
	for i := range 32 {
		l := udp()
		l.SrcPort += layers.UDPPort(i)
		r.Far.Send(0, build(t, false, l, []byte("x")))
	}
	r.settle()
	k := r.m.Counters()
	if k.RxQueue[0]+k.RxQueue[1] != 32 || k.RxQueue[0] < 5 || k.RxQueue[1] < 5 {
		t.Errorf("queues got %d and %d", k.RxQueue[0], k.RxQueue[1])
	}
	for q, base := range []int{0, 0x4000} {
		for i := range int(k.RxQueue[q]) {
			d := r.mem[base+16*i:][:16]
			if h := binary.LittleEndian.Uint32(d[4:]); int(h&1) != q || d[0]&15 != 7 {
				t.Errorf("queue %d has a frame with hash %08x of type %d", q, h, d[0]&15)
			}
		}
	}
}
