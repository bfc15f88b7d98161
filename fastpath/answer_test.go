package fastpath

import (
	"bytes"
	"slices"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/oracle"
)

func ping4(r *Responder, frame []byte) bool {
	return r.Ping4((*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), len(frame))
}

// pingPacket4 has PingPacket4 answer the packet of a frame.
func pingPacket4(r *Responder, frame []byte) bool {
	to, from, head := NewLinkAddress([6]byte(frame)), NewLinkAddress([6]byte(frame[6:])), slices.Clone(frame[:14])
	copy(frame[10:], []byte{8, 0, 0, 0})
	ok := r.PingPacket4((*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), len(frame), to, from)
	copy(frame, head)
	if ok {
		copy(frame, head[6:12])
		copy(frame[6:], head[:6])
	}
	return ok
}

// Requests of every length: Ping4 and PingPacket4 verify the checksum over all of the message and nothing behind it, make the reply that
// Slow makes, and leave what they turn down as it was.
func TestPing4Lengths(t *testing.T) {
	t.Run("frame", func(t *testing.T) { pingLengths(t, ping4) })
	t.Run("packet", func(t *testing.T) { pingLengths(t, pingPacket4) })
}

func pingLengths(t *testing.T, ping func(*Responder, []byte) bool) {
	c := config(Strict)
	c.ChecksumBytes = 300
	r, other := responder(t, c), responder(t, c)
	for n := range 270 {
		m := make([]byte, 8+n)
		m[0] = 8
		for i := range m[4:] {
			m[4+i] = byte(37*i + n)
		}
		be.PutUint16(m[2:], ^oracle.Sum(m))
		f := eth(ourMAC, theirMAC, 0, 0x0800, ip4(their4, our4, 1, m))
		a, b := inBuffer(f), inBuffer(f)
		if !ping(r, a) || slowly(other, b) != len(f) || !bytes.Equal(a, b) || !bytes.Equal(a[len(f):][:32], b[len(f):][:32]) {
			t.Fatalf("%d bytes of data: fast, Slow\n%x\n%x", n, a, b)
		}
		for i := range m {
			g := inBuffer(f)
			g[34+i] ^= 1 << (n & 7)
			was := slices.Clone(g)
			if ping(r, g) || !bytes.Equal(g, was) {
				t.Fatalf("%d bytes of data, byte %d of the message is wrong: answered, or changed", n, i)
			}
		}
	}
	if a, b := r.Stats(), other.Stats(); a[AnsweredICMPv4] != 270 || a != b {
		t.Errorf("counted %v, Slow %v", a, b)
	}
}

// bounce4 likewise; which datagrams have no checksum, or a wrong one, it tells as Slow does.
func TestBounce4Lengths(t *testing.T) {
	c := config(Strict)
	c.ChecksumBytes = 300
	r, other := responder(t, c), responder(t, c)
	bounce4 := func(f []byte) bool {
		h := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(f)))
		return Match(h) == UDPv4 && r.bounce4(h, len(f))
	}
	answered := uint64(0)
	for n := range 270 {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(37*i + n)
		}
		f := eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, our4, 40000, 7, data))
		for _, sum := range []bool{true, false} {
			if !sum {
				be.PutUint16(f[40:], 0)
			}
			a, b := inBuffer(f), inBuffer(f)
			if !bounce4(a) || slowly(other, b) != len(f) || !bytes.Equal(a, b) || !bytes.Equal(a[len(f):][:32], b[len(f):][:32]) {
				t.Fatalf("%d bytes of data: bounce4, Slow\n%x\n%x", n, a, b)
			}
			answered++
		}
		f = eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, our4, 40000, 7, data))
		for i := 8; i < 8+n; i++ {
			g := inBuffer(f)
			g[34+i] ^= 1 << (n & 7)
			was := slices.Clone(g)
			if bounce4(g) || !bytes.Equal(g, was) {
				t.Fatalf("%d bytes of data, byte %d of the datagram is wrong: answered, or changed", n, i)
			}
		}
	}
	if a, b := r.Stats(), other.Stats(); a[AnsweredUDPv4] != answered || a != b {
		t.Errorf("counted %v, Slow %v", a, b)
	}
}
