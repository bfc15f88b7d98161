package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/must"
)

// turned is the reply to a UDP frame over IPv4.
func turned(b []byte) []byte {
	r := bytes.Clone(b)
	copy(r, b[6:12])
	copy(r[6:], b[:6])
	copy(r[26:], b[30:34])
	copy(r[30:], b[26:30])
	copy(r[34:], b[36:38])
	copy(r[36:], b[34:36])
	return r
}

// A flood of foreign frames, and of frames that pretend to be from the target or a router, does not displace probes:
// each probe is sent, each reply is counted, and the other frames are counted correctly. Neighbour requests are
// answered meanwhile.
func TestFlood(t *testing.T) {
	const probes, each = 500, 60
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []float64{0, 20_000} {
		f := &fake{}
		question := make([]byte, 60)
		questions, answers, corrupt := 0, 0, 0
		var earlier [][]byte
		f.onSend = func(n int, b []byte) {
			if string(b) == "answer" {
				answers++
				return
			}
			good := turned(b)
			for i := range each {
				g := bytes.Clone(good)
				switch i % 6 {
				case 0: // from any host, to another port
					binary.BigEndian.PutUint32(g[26:], rnd.Uint32())
					binary.BigEndian.PutUint16(g[36:], 50001)
					binary.BigEndian.PutUint32(g[42:], rnd.Uint32())
				case 1: // meaningless
					for j := range g {
						g[j] = byte(rnd.Uint32())
					}
				case 2:
					g = question
					questions++
				case 3: // the target's address, with another payload, for any probe
					binary.BigEndian.PutUint32(g[46:], rnd.Uint32N(uint32(n+1)))
					g[60] ^= 1
					corrupt++
				case 4: // an ICMP error from a router: a probe to another host has expired
					g = append(g[:42:42], b[14:42]...)
					g[23], g[34] = 1, 11
					g[58] ^= 1
				case 5:
					if g = good; len(earlier) > 0 {
						g = earlier[rnd.IntN(len(earlier))] // again
					} else {
						g = question
						questions++
					}
				}
				f.reply(g, 0)
			}
			f.reply(good, 0)
			earlier = append(earlier, good)
		}
		s, rec := stream(t, f, rate, time.Minute, func(o *Options) {
			o.Codec = codec(t, func(f *probe.Flow) {
				f.Layer, f.SrcMAC, f.DstMAC, f.Size = probe.Frame, [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2},
					90
			})
			o.Answer = answerTo(question)
		})
		must.OK(t, s.Run(Limit{Count: probes}, new(atomic.Bool)))
		c := s.Counts()
		if c.Sent != probes || c.Received != probes || c.Unanswered() != 0 || c.Unsent != 0 || c.Late != 0 ||
			series(rec)("rtt").Count != probes {
			t.Errorf("rate %v: %+v, want %d sent and received", rate, c, probes)
		}
		if again := int64((probes - 1) * each / 6); c.Duplicates != again || c.Corrupt != int64(corrupt) ||
			c.Spoiled != 0 || c.Refused != 0 ||
			c.Foreign != int64(probes*each)-again-int64(corrupt) || answers != questions {
			t.Errorf("rate %v: %+v; %d of %d questions answered; want %d duplicates, %d corrupt", rate, c, answers,
				questions, again, corrupt)
		}
	}
}
