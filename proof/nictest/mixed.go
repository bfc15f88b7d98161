package nictest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
)

// owner is who has to receive a frame of the mixed traffic.
type owner int

const (
	responders owner = iota // answered
	refuseds                // received by the responder, which counts and drops it
	kernels
	nobodys // another station's
)

// mixed is a kind of frame. Its weight is how often it comes, relative to others.
type mixed struct {
	name   string
	weight int
	owner  owner
	v6     bool
	build  func(*mixer) []byte
}

// mixer makes the frames of the mixed traffic, each of them different.
type mixer struct {
	rng    *rand.Rand
	number uint64
}

// to returns a request to us in a protocol, of any size, that edit has changed. Its checksums are right.
func (m *mixer) to(p proto, edit func(f, l4 []byte)) []byte {
	f := request(p, minFrame+m.rng.IntN(1514-minFrame+1), uint8(m.rng.Uint32()), m.number)
	l4 := f[34:]
	if p >= icmp6 {
		l4 = f[54:]
	}
	if edit != nil {
		edit(f, l4)
	}
	finish(f)
	return f
}

// other returns an IP packet to us in another protocol.
func (m *mixer) other(p proto, protocol byte, edit func(l4 []byte)) []byte {
	f := m.to(p, nil)
	l4 := f[34:]
	if p >= icmp6 {
		f[20], l4 = protocol, f[54:]
	} else {
		f[23] = protocol
	}
	if edit != nil {
		edit(l4)
	}
	sumIPv4(f)
	return f
}

func sumIPv4(f []byte) {
	if f[12] == 0x08 {
		clear(f[24:26])
		binary.BigEndian.PutUint16(f[24:], ^fold(sum(f[14:34])))
	}
}

// kind sets type and code of ICMP.
func kind(types ...byte) func(*mixer, proto) []byte {
	return func(m *mixer, p proto) []byte {
		return m.to(p, func(_, l4 []byte) { l4[0], l4[1] = types[m.rng.IntN(len(types))], byte(m.rng.IntN(4)) })
	}
}

func port(l4 []byte, p uint16) { binary.BigEndian.PutUint16(l4[2:], p) }

// elsewhere changes the destination to the kernel's other address.
func elsewhere(f, _ []byte) {
	if f[12] == 0x08 {
		f[33] = 77
	} else {
		f[53] = 77
	}
}

func tcp(m *mixer, p proto) []byte {
	return m.other(p, 6, func(l4 []byte) {
		port(l4, []uint16{22, 80, echoPort, stampPort}[m.rng.IntN(4)])
		l4[12], l4[13] = 0x50, byte(m.rng.IntN(32))
	})
}

func stamp(m *mixer, p proto) []byte {
	f := request(p, map[proto]int{udp4: 86, udp6: 106}[p], uint8(m.rng.Uint32()), m.number)
	port(f[len(f)-52:], stampPort)
	finish(f)
	return f
}

func wrongPort(m *mixer, p proto) []byte {
	return m.to(p, func(_, l4 []byte) {
		n := uint16(m.rng.Uint32())
		for n == echoPort || n == stampPort {
			n++
		}
		port(l4, n)
		if m.rng.IntN(2) == 0 {
			binary.BigEndian.PutUint16(l4, echoPort)
		}
	})
}

func wrongSum(m *mixer, p proto) []byte {
	f := m.to(p, nil)
	f[len(f)-1-m.rng.IntN(8)] ^= 1 << m.rng.IntN(8)
	return f
}

// fragment is the first fragment of a packet to us or a later one.
func fragment(m *mixer, p proto) []byte {
	f := m.to(p, nil)
	if p >= icmp6 {
		f[20], f[54], f[55] = 44, f[20], 0
		binary.BigEndian.PutUint16(f[56:], uint16(m.rng.IntN(100))<<3|1)
		return f
	}
	at := uint16(1 + m.rng.IntN(180))
	binary.BigEndian.PutUint16(f[20:], []uint16{0x2000, 0x2000 | at, at}[m.rng.IntN(3)])
	sumIPv4(f)
	return f
}

// group sends a frame to a group address or broadcast.
func group(m *mixer, p proto) []byte {
	f := m.to(p, nil)
	macs := [][]byte{{255, 255, 255, 255, 255, 255}, {1, 0, 0x5E, 0, 0, 0xFB}, {0x33, 0x33, 0xFF, 0, 0, 1}}
	copy(f, macs[m.rng.IntN(len(macs))])
	return f
}

// raw is a frame of another protocol than IP.
func raw(m *mixer, etherType uint16, mac [6]byte) []byte {
	f := m.to(icmp4, nil)
	copy(f, mac[:])
	binary.BigEndian.PutUint16(f[12:], etherType)
	return f
}

func arp(m *mixer) []byte {
	mac := ourMAC
	if m.rng.IntN(2) == 0 {
		mac = [6]byte{255, 255, 255, 255, 255, 255}
	}
	f := raw(m, 0x0806, mac)[:minFrame]
	copy(f[14:], []byte{0, 1, 8, 0, 6, 4, 0, byte(1 + m.rng.IntN(2))})
	binary.BigEndian.PutUint64(f[50:], m.number)
	copy(f[38:], our4.AsSlice())
	return f
}

// v46 returns a kind over IPv4 and IPv6.
func v46(name string, weight int, o owner, over4 proto, build func(*mixer, proto) []byte) []mixed {
	return []mixed{
		{name + ", IPv4", weight, o, false, func(m *mixer) []byte { return build(m, over4) }},
		{name + ", IPv6", weight, o, true, func(m *mixer) []byte { return build(m, over4+2) }},
	}
}

func edited(edit func(f, l4 []byte)) func(*mixer, proto) []byte {
	return func(m *mixer, p proto) []byte { return m.to(p, edit) }
}

// kinds are all kinds of frames.
var kinds = slices.Concat(
	v46("ping", 8, responders, icmp4, edited(nil)),
	v46("datagram", 8, responders, udp4, edited(nil)),
	v46("test packet", 8, responders, udp4, stamp),
	v46("wrong checksum", 1, refuseds, udp4, wrongSum),
	v46("TCP", 6, kernels, udp4, tcp),
	v46("fragment of a datagram", 2, kernels, udp4, fragment),
	v46("fragment of a ping", 2, kernels, icmp4, fragment),
	v46("another port", 3, kernels, udp4, wrongPort),
	v46("datagram to another address", 2, kernels, udp4, edited(elsewhere)),
	v46("ping of another address", 2, kernels, icmp4, edited(elsewhere)),
	v46("datagram to a group", 2, kernels, udp4, group),
	v46("ping to a group", 2, kernels, icmp4, group),
	v46("another protocol", 1, kernels, udp4, func(m *mixer,
		p proto) []byte {
		return m.other(p, []byte{2, 47, 50, 132}[m.rng.IntN(4)], nil)
	}),
	v46("another station's datagram", 1, nobodys, udp4, func(m *mixer,
		p proto) []byte {
		return m.to(p, func(f, _ []byte) { f[5] = 99 })
	}),
	v46("another station's ping", 1, nobodys, icmp4, func(m *mixer,
		p proto) []byte {
		return m.to(p, func(f, _ []byte) { f[5] = 99 })
	}),
	[]mixed{
		{"echo reply, IPv4", 4, kernels, false, func(m *mixer) []byte { return kind(0)(m, icmp4) }},
		{"echo reply, IPv6", 4, kernels, true, func(m *mixer) []byte { return kind(129)(m, icmp6) }},
		{"ICMP error, IPv4", 3, kernels, false, func(m *mixer) []byte { return kind(3, 4, 5, 11, 12)(m, icmp4) }},
		{"ICMP error, IPv6", 3, kernels, true, func(m *mixer) []byte { return kind(1, 2, 3, 4)(m, icmp6) }},
		{"ICMP timestamp", 1, kernels, false, func(m *mixer) []byte { return kind(13)(m, icmp4) }},
		{"neighbour discovery", 4, kernels, true, func(m *mixer) []byte {
			f := kind(133, 134, 135, 136, 137)(m, icmp6)
			if m.rng.IntN(2) == 0 {
				copy(f, []byte{0x33, 0x33, 0xFF, 0, 0, 1})
			}
			return f
		}},
		{"ARP", 4, kernels, false, arp},
		{"another EtherType", 1, kernels, false, func(m *mixer) []byte { return raw(m, 0x88B5, ourMAC) }},
	})

// mixedFrames is the number of frames of MixedTraffic.
func mixedFrames(t testing.TB) int {
	return must.Get(strconv.Atoi(cmp.Or(os.Getenv("REBOUND_MIXED_FRAMES"), "20000")))(t)
}

// Mix describes to MixedTraffic what a device's rules cannot select.
type Mix struct {
	Stays     []string // kinds for the responder that stay with the kernel
	Refuses   []string // kinds for the kernel that the responder receives, and refuses
	CountsAll bool     // the kernel's driver counts frames for other stations, too
}

// MixedTraffic sends a mixture of frames to a driver beside the kernel's, 20000 or $REBOUND_MIXED_FRAMES, in bursts
// that fit into the rings. Those that the driver's rules select are answered once, all others reach the kernel's driver
// once and unchanged, no frame is lost, and the counters of both drivers add up.
func MixedTraffic(t *testing.T, h Harness, mix Mix) {
	h.virtual = true
	synctest.Test(t, func(t *testing.T) { newRig(t, h).mixedTraffic(mixedFrames(t), mix) })
}

func (x *rig) mixedTraffic(n int, mix Mix) {
	x.open(1)
	defer x.close()
	r := newKindsResponder(x)
	x.resp = []*fastpath.Responder{r}
	var all []mixed
	for _, k := range kinds {
		switch {
		case slices.Contains(mix.Stays, k.name), k.v6 && x.h.IPv4 && k.owner != nobodys:
			k.owner = kernels
		case slices.Contains(mix.Refuses, k.name):
			k.owner = refuseds
		}
		all = append(all, slices.Repeat([]mixed{k}, k.weight)...)
	}
	m := &mixer{rng: rand.New(rand.NewPCG(27, 2))}
	count, bytesIn, bytesOut := map[string]int{}, 0, 0
	by := map[owner]int{}
	host, before, sends := x.kernel.Host(), x.hostStats(), 0
	buf := make([]byte, 2048)
	for left := n; left > 0; {
		burst := min(1+m.rng.IntN(40), left)
		left -= burst
		began := r.Loop.Begin()
		var toKernel [][]byte
		wire := map[string]string{} // frames that have to come back: those of the kernel, and requests by their replies
		for range burst {
			k := all[m.rng.IntN(len(all))]
			m.number++
			f := k.build(m)
			var back []byte
			if k.owner == responders {
				if back = reply(f); strings.HasPrefix(k.name, "test packet") {
					back = reflection(f)
				}
			}
			if m.rng.IntN(4) == 0 {
				tag := []byte{0x81, 0, byte(m.rng.IntN(16)), byte(m.rng.IntN(256))}
				if f = slices.Insert(f, 12, tag...); back != nil {
					back = slices.Insert(back, 12, tag...)
				}
			}
			by[k.owner]++
			count[k.name]++
			if k.owner != nobodys || mix.CountsAll {
				bytesIn += len(f)
			}
			switch k.owner {
			case responders:
				wire[string(back)] = k.name
			case kernels:
				toKernel = append(toKernel, f)
			}
			x.send(f)
			for range m.rng.IntN(3) {
				x.port.Step()
			}
			if m.rng.IntN(8) == 0 {
				x.poll()
			}
			if m.rng.IntN(16) == 0 {
				m.number++
				f := reply(m.to(proto(m.rng.IntN(int(protos))), nil))
				must.OK(x, host.Send(f))
				wire[string(f)] = "the kernel's own"
				sends++
			}
		}
		x.settle()
		for i, want := range toKernel {
			got, _, err := host.Recv(buf)
			if must.OK(x, err); !bytes.Equal(buf[:max(got, 0)], want) {
				x.Fatalf("before frame %d, of %d for the kernel's driver it has received\n%x\nwant %d:\n%x", m.number,
					len(toKernel), buf[:max(got, 0)], i, want)
			}
		}
		if got, _, err := host.Recv(buf); got != 0 || err != nil {
			x.Fatalf("before frame %d, the kernel's driver has received one too many: %x, %v", m.number,
				buf[:max(got, 0)], err)
		}
		for _, f := range x.received() {
			bytesOut += len(f)
			key := x.timeless(f, began)
			if wire[key] == "" {
				x.Fatalf("before frame %d, this was sent without reason, or twice:\n%x", m.number, f)
			}
			delete(wire, key)
		}
		for f, name := range wire {
			x.Fatalf("before frame %d, %s was not sent:\n%x", m.number, name, f)
		}
	}
	s, k := x.stats(), x.hostStats()
	answered, kernel := uint64(by[responders]), uint64(by[kernels])
	received := answered + uint64(by[refuseds])
	x.Logf("%d frames: %d answered, %d refused, %d for the kernel, %d for nobody; the kernel sent %d. By kind: %v", n,
		answered, by[refuseds], kernel, by[nobodys], sends, count)
	if s.RxFrames != received || s.TxFrames != answered || s.RxDropped|s.RxErrors|s.TxDropped|s.TxErrors|s.Resets != 0 {
		x.Errorf("%d received and %d answered, counted %+v", received, answered, s)
	}
	arrived := received + kernel
	if mix.CountsAll {
		arrived += uint64(by[nobodys])
	}
	if k.RxFrames-before.RxFrames != arrived || k.TxFrames-before.TxFrames != answered+uint64(sends) ||
		k.RxDropped|k.RxErrors|k.TxDropped|k.TxErrors|k.Resets != 0 ||
		k.RxBytes-before.RxBytes != uint64(bytesIn) || k.TxBytes-before.TxBytes != uint64(bytesOut) {
		x.Errorf("the port: %d frames of %d bytes received and %d of %d bytes sent, the kernel's driver counted %+v after %+v", arrived, bytesIn,
			answered+uint64(sends), bytesOut, k, before)
	}
	got := r.Stats()
	for name, v := range map[string]int{"ping, IPv4": int(got[fastpath.AnsweredICMPv4]),
		"ping, IPv6":     int(got[fastpath.AnsweredICMPv6]),
		"datagram, IPv4": int(got[fastpath.AnsweredUDPv4]), "datagram, IPv6": int(got[fastpath.AnsweredUDPv6]),
		"test packet, IPv4": int(got[fastpath.AnsweredSTAMPv4]),
		"test packet, IPv6": int(got[fastpath.AnsweredSTAMPv6])} {
		kernel := slices.Contains(mix.Stays, name) || x.h.IPv4 && name[len(name)-1] == '6'
		if want := count[name]; !kernel && v != want || kernel && v != 0 {
			x.Errorf("%s: counted %d, sent %d (for the kernel: %v)", name, v, want, kernel)
		}
	}
	if int(got.Refused()) != by[refuseds] {
		x.Errorf("refused %d, sent %d: %v", got.Refused(), by[refuseds], got)
	}
	for _, kind := range slices.Concat(mix.Stays, mix.Refuses) {
		if count[kind] == 0 {
			x.Errorf("%q was not sent: is its name right?", kind)
		}
	}
}

// reflection is the reply to a test packet, as timeless returns it.
func reflection(req []byte) []byte {
	f := reply(req)
	p, sent := f[len(f)-44:], req[len(req)-44:]
	clear(p[4:12])  // T3
	clear(p[16:24]) // T2
	binary.BigEndian.PutUint16(p[12:], 0x8587)
	copy(p[24:38], sent)
	copy(p[38:], []byte{0, 0, 64})
	clear(f[len(f)-46 : len(f)-44]) // the checksum
	return f
}

// timeless returns a frame that the device has sent in passes that began at a tick, for reflections without timestamps
// and checksum, which have to be right.
func (x *rig) timeless(f []byte, began uint64) string {
	x.Helper()
	b := bytes.Clone(f)
	if b[12] == 0x81 {
		b = slices.Delete(b, 12, 16)
	}
	l4 := 34
	if b[12] != 0x08 {
		l4 = 54
	}
	if len(b) != l4+8+44 || binary.BigEndian.Uint16(b[l4:]) != stampPort {
		return string(f)
	}
	p := b[l4+8:]
	t3, t2 := binary.BigEndian.Uint64(p[4:]), binary.BigEndian.Uint64(p[16:])
	if ntp := func(tick uint64) uint64 { return 1<<60 + tick>>1 }; t2 != ntp(began) || t3 < t2 ||
		t3 > ntp(polling.TSC()) { // newKindsResponder's clock
		x.Fatalf("T2 %d, T3 %d, began at %d:\n%x", t2, t3, ntp(began), f)
	}
	whole := bytes.Clone(b)
	if finish(whole); !bytes.Equal(whole, b) {
		x.Fatalf("checksums of\n%x\nshould be those of\n%x", b, whole)
	}
	clear(p[4:12])
	clear(p[16:24])
	clear(b[l4+6 : l4+8])
	return string(slices.Concat(f[:len(f)-len(b)+12], b[12:]))
}
