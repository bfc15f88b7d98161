package probe_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func machine(t testing.TB, neighbours bool, flows ...probe.Flow) func([]byte) bool {
	t.Helper()
	raw := must.Get(probe.Filter(flows, neighbours))(t)
	all, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program has unknown instructions")
	}
	vm := must.Get(bpf.NewVM(all))(t)
	return func(b []byte) bool {
		return must.Get(vm.Run(b))(t) > 0
	}
}

// refusal returns an ICMP error from a router that quotes the probe.
func refusal(f probe.Flow, b []byte, kind, code byte) []byte {
	if f.Src.Is6() {
		out := append(bytes.Clone(b[:54]), kind, code, 0, 0, 0, 0, 0, 0)
		copy(out[22:38], netip.MustParseAddr("fd00::99").AsSlice())
		copy(out[38:54], b[22:38])
		out[20] = 58
		return append(out, b[14:]...)
	}
	out := append(bytes.Clone(b[:34]), kind, code, 0, 0, 0, 0, 0, 0)
	copy(out[26:30], []byte{10, 0, 0, 99})
	copy(out[30:34], b[26:30])
	out[23] = 1
	return append(out, b[14:]...)
}

func flows() (all []probe.Flow) {
	for _, p := range []probe.Proto{probe.ICMP, probe.UDP, probe.STAMP} {
		for _, v6 := range []bool{false, true} {
			f := flow(p, v6, 0)
			f.Size += 20
			f.Run += uint32(len(all))
			if f.ID += uint16(len(all)); p == probe.UDP {
				f.SrcPorts = []uint16{f.SrcPort, f.SrcPort + 1, f.SrcPort + 2}
			}
			all = append(all, f)
		}
	}
	return all
}

// The filter accepts every frame that Check attributes to a flow, also with random errors in it.
func TestFilterAcceptsWhatCheckDoes(t *testing.T) {
	all, rnd := flows(), rand.New(rand.NewPCG(1, 2))
	together := machine(t, false, all...)
	verdicts := map[probe.Verdict]int{}
	for _, f := range all {
		c := must.Get(probe.New(f))(t)
		alone := machine(t, false, f)
		for n := range uint32(20000) {
			b := c.Build(n, 0)
			if rnd.IntN(10) < 2 {
				b = refusal(f, b, []byte{3, 11, 12, 1, 2, 4}[rnd.IntN(6)], byte(rnd.IntN(5)))
			} else {
				b = answer(f, b)
			}
			for range rnd.IntN(4) {
				b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			}
			switch rnd.IntN(20) {
			case 0:
				b = b[:rnd.IntN(len(b))]
			case 1:
				b = append(b, make([]byte, rnd.IntN(100))...)
			}
			var r probe.Reply
			v := c.Check(b, &r)
			verdicts[v]++
			if v != probe.Foreign && (!alone(b) || !together(b)) {
				t.Fatalf("%v, verdict %v: rejected %x", f, v, b)
			}
		}
	}
	for _, v := range []probe.Verdict{probe.Foreign, probe.Good, probe.Corrupt, probe.Refused} {
		if verdicts[v] < 100 {
			t.Errorf("%d frames with verdict %v", verdicts[v], v)
		}
	}
}

// A host's other traffic is rejected, also that with the target.
func TestFilterRejectsOtherTraffic(t *testing.T) {
	for _, f := range flows() {
		takes := machine(t, false, f)
		c := must.Get(probe.New(f))(t)
		good := answer(f, c.Build(1, 0))
		l4, next := l4(f.Src.Is6()), 23
		if f.Src.Is6() {
			next = 20
		}
		for name, change := range map[string]func(b []byte) []byte{
			"TCP from the target":            func(b []byte) []byte { b[next] = 6; be.PutUint32(b[l4:], 443<<16|50); return b },
			"a datagram between other ports": func(b []byte) []byte { b[next] = 17; be.PutUint32(b[l4:], 53<<16|53); return b },
			"the answer to another ping": func(b []byte) []byte {
				copy(b[l4:], []byte{0, 0, 0xaa, 0xaa, 0x77, 0x77})
				if b[next] = 1; f.Src.Is6() {
					b[next], b[l4] = 58, 129
				}
				return b
			},
			"a request instead of an answer":       func(b []byte) []byte { return c.Build(2, 0)[:l4+8] },
			"no more than an Ethernet header":      func(b []byte) []byte { return b[:14] },
			"ARP":                                  func(b []byte) []byte { b = make([]byte, 60); b[12], b[13] = 8, 6; return b },
			"an ICMP error that quotes too little": func([]byte) []byte { return refusal(f, c.Build(2, 0), 3, 1)[:2*l4-3] },
			"an ICMP error about other traffic": func(b []byte) []byte {
				b = refusal(f, c.Build(2, 0), 3, 1)
				b[len(b)-1] = 0
				b[l4+8+l4-14-1] ^= 1
				return b
			},
		} {
			b := change(bytes.Clone(good))
			if len(b) >= l4+12 && f.Proto != probe.STAMP && be.Uint32(b[l4+8:]) == f.Run {
				be.PutUint32(b[l4+8:], 0)
			}
			if takes(b) {
				t.Errorf("%v to %v accepts %s: %x", f.Proto, f.Dst, name, b)
			}
		}
		if !takes(refusal(f, c.Build(2, 0), 3, 1)[:2*l4-2]) {
			t.Errorf("%v to %v rejects an ICMP error that quotes its ports", f.Proto, f.Dst)
		}
		if !takes(good) {
			t.Errorf("%v to %v rejects its reply", f.Proto, f.Dst)
		}
	}
}

// Neighbours' frames are accepted only for an address that the kernel does not own.
func TestFilterOfNeighbours(t *testing.T) {
	f4, f6 := flow(probe.UDP, false, 0), flow(probe.UDP, true, 0)
	request, other := make([]byte, 60), make([]byte, 60)
	for _, b := range [][]byte{request, other} {
		copy(b[12:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1})
	}
	copy(request[38:], f4.Src.AsSlice())
	copy(other[38:], []byte{10, 0, 0, 77})
	solicits, advertises, elsewhere := make([]byte, 86), make([]byte, 86), make([]byte, 86)
	for i, b := range [][]byte{solicits, advertises, elsewhere} {
		b[12], b[13], b[14], b[20], b[54] = 0x86, 0xdd, 6<<4, 58, byte(135+i%2)
	}
	copy(solicits[62:], f6.Src.AsSlice())
	copy(elsewhere[62:], f6.Dst.AsSlice())
	with, without := machine(t, true, f4, f6), machine(t, false, f4, f6)
	for _, c := range []struct {
		name string
		b    []byte
		want bool
	}{{"a request", request, true}, {"a request for another host", other, false}, {"a solicitation", solicits, true},
		{"an advertisement", advertises, true}, {"its first 78 bytes", advertises[:78], true},
		{"77 bytes of it", advertises[:77], false}, {"a solicitation of another host", elsewhere, false}} {
		if with(c.b) != c.want || without(c.b) {
			t.Errorf("%s: %v with neighbours, %v without", c.name, with(c.b), without(c.b))
		}
	}
}

func TestFilterIsBounded(t *testing.T) {
	check.Fails(t, "a thousand flows", check.Err(probe.Filter(make([]probe.Flow, 1000), false)), probe.ErrFilter)
}
