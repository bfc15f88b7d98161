package fastpath

import (
	"fmt"
	"testing"
)

func TestZeroAllocations(t *testing.T) {
	for _, mode := range []Mode{Strict, Open} {
		r := responder(t, config(mode))
		for tags := range 3 {
			for _, q := range requests(tags) {
				f := inBuffer(q.frame)
				if n := testing.AllocsPerRun(10, func() {
					poll(r, f[:copy(f, q.frame)])
					slowly(r, f[:copy(f, q.frame)])
					f[13]++
					poll(r, f)
				}); n != 0 {
					t.Errorf("mode %d, %d tags, %s: %v allocations", mode, tags, q.name, n)
				}
			}
		}
	}
}

// ringFrames is the number of frames of one kind in the benchmark's receive ring.
const ringFrames = 64

// benchmark measures one reply, with the frame outside the first-level cache, as a device with direct cache access
// leaves it. Only the head of a frame is restored between replies, in a separate pass: if a wider load had to wait for
// such a store, that would be an artefact of the benchmark, not a cost of the responder.
func benchmark(b *testing.B, c Config, frame []byte, do func(*Responder, []byte) int) {
	r := responder(b, c)
	var frames [ringFrames][]byte
	for i := range frames {
		frames[i] = inBuffer(frame)
	}
	head := min(len(frame), 112)
	b.ReportAllocs()
	for b.Loop() {
		for i := range frames {
			copy(frames[i][:head], frame)
		}
		for i := range frames {
			if do(r, frames[i]) != len(frame) {
				b.Fatal("refused")
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/ringFrames, "ns/frame")
}

func find(name string, tags int) []byte {
	for _, q := range requests(tags) {
		if q.name == name {
			return q.frame
		}
	}
	panic("no request " + name)
}

func BenchmarkRestore(b *testing.B) {
	c := config(Strict)
	benchmark(b, c, find("ping", 0), func(_ *Responder, f []byte) int { return len(f) })
}

func BenchmarkReply(b *testing.B) {
	partial := config(Strict)
	partial.PartialChecksums = true
	for _, v := range []struct {
		name string
		c    Config
	}{{"strict", config(Strict)}, {"open", config(Open)}, {"partial", partial}} {
		for _, name := range []string{"ping", "udp", "ping6", "udp6"} {
			b.Run(v.name+"/"+name, func(b *testing.B) { benchmark(b, v.c, find(name, 0), poll) })
		}
	}
}

func BenchmarkSlow(b *testing.B) {
	for tags := range 3 {
		for _, name := range []string{"ping", "udp", "ping6", "udp6", "arp", "ns", "stamp"} {
			b.Run(fmt.Sprintf("%d tags/%s", tags, name), func(b *testing.B) {
				benchmark(b, config(Strict), find(name, tags), slowly)
			})
		}
	}
}
