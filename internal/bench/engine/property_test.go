package engine

import (
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/random"
)

// The slowest that are kept are the last ones of all in order, each with what it was added with, and the time in stalls
// is the sum of their overlaps.
func TestSlowestAgreeWithSorted(t *testing.T) {
	rnd := random.New(t)
	for range 5 {
		s := &slowest{least: 100}
		type gap struct{ from, to uint64 }
		var stalls []gap
		var all []uint64
		byRTT := map[uint64]Slow{}
		at := uint64(1000)
		for i := range slowestKept * 3 / 2 {
			if length := rnd.Uint64N(200); rnd.IntN(3) == 0 {
				if s.recordGap(at, at+length); length >= s.least {
					stalls = append(stalls, gap{at, at + length})
				}
				at += length
			}
			rtt := rnd.Uint64N(1<<20)<<12 | uint64(i) // all differ
			at += 1 + rnd.Uint64N(50)
			k := Slow{Intended: at - min(at-1, rnd.Uint64N(500)), Sent: uint64(i)}
			k.Seen = k.Intended + rtt
			for _, g := range stalls {
				if from, to := max(g.from, k.Intended), min(g.to, k.Seen); from < to {
					k.Away += to - from
				}
			}
			want := k
			k.Away = 0
			if takes := len(all) < slowestKept || rtt > all[len(all)-slowestKept]; takes != s.takes(rtt) {
				t.Fatalf("%d ticks are among the slowest: %t", rtt, !takes)
			}
			s.add(&k)
			byRTT[rtt] = want
			place, _ := slices.BinarySearch(all, rtt)
			all = slices.Insert(all, place, rtt)
		}
		var got []uint64
		for _, k := range s.kept[:s.n] {
			got = append(got, k.RTT())
			check.Equal(t, k, byRTT[k.RTT()], "kept %+v")
		}
		slices.Sort(got)
		check.Same(t, got, all[len(all)-slowestKept:], "%v")
	}
}

// The time of sending is set for the probe of that number, if the same clock was read with it.
func TestSlowestSent(t *testing.T) {
	s := &slowest{}
	for i, n := range []NIC{{Tick: 1, seq: 7}, {Tick: 0, seq: 8}, {Tick: 2, seq: 9}, {Tick: 2, seq: 10, Card: true}} {
		s.add(&Slow{Seen: uint64(10 + i), NIC: n})
	}
	for seq := range uint32(12) {
		s.sent(seq, &nic.Timestamp{Nanoseconds: int64(seq) * 100})
	}
	for _, k := range s.kept[:s.n] {
		want := map[uint32]int64{7: 700, 9: 900}[k.NIC.seq]
		check.Equal(t, k.NIC.Sent, want, "sent at %d")
	}
	s.sent(10, &nic.Timestamp{Nanoseconds: 5, Hardware: true})
	check.Equal(t, s.kept[3].NIC.Sent, 5, "sent at %d by the card")
	s.kept[5].NIC = NIC{Tick: 1, seq: 20} // not kept
	s.sent(20, &nic.Timestamp{Nanoseconds: 5})
	check.Equal(t, s.kept[5].NIC.Sent, 0, "sent at %d")
}

// Only stalls that may be forgotten because newer ones took their places are missing.
func TestStallsAreForgotten(t *testing.T) {
	s := &slowest{least: 10}
	n := uint64(len(s.stalls))
	for i := range n + 1 {
		s.recordGap(100*i, 100*i+10)
	}
	s.recordGap(0, 9) // too short
	check.Equal(t, s.away(0, 1<<40), 10*n, "%d ticks in stalls")
	check.Equal(t, s.away(105, 203), 5+3, "%d ticks in parts of stalls")
	check.Equal(t, s.away(110, 200), 0, "%d ticks between stalls")
}

// A window and a list of all probes agree about each reply, each count and the order, in the warm-up too, and when the
// number on the wire wraps.
func TestWindowAgreesWithList(t *testing.T) {
	rnd := random.New(t)
	const size, timeout = 64, 10
	for round := range 20 {
		w, from := newWindow(size, timeout), round%2*(1<<32-100)
		w.next = uint64(from)
		w.tail, w.high, w.judged = w.next, w.next, w.next
		type sent struct {
			at                          uint64
			measured, answered, spoiled bool
		}
		var all []sent
		var want Counts
		high, at := 0, uint64(5)
		var arrived []int
		var order Sequence
		for range 500 {
			at += rnd.Uint64N(4)
			back := rnd.IntN(size + 8)
			if rnd.IntN(3) > 0 {
				back = rnd.IntN(4)
			}
			seq := len(all) - 1 - back
			if from != 0 {
				seq = max(seq, 0) // no run begins there, and what it seems to have sent before is unknown
			}
			known := seq >= max(len(all)-size, 0) && seq < len(all)
			switch rnd.IntN(5) {
			case 0, 1:
				measured := len(all) > 20
				w.send(at, at, 0, measured)
				all = append(all, sent{at: at, measured: measured})
				if measured {
					want.Sent++
				} else {
					want.Silent++
				}
			case 2:
				w.spoil(uint32(from + seq))
				if known && !all[seq].answered && !all[seq].spoiled {
					if all[seq].spoiled = true; all[seq].measured {
						want.Spoiled++
					}
				}
			default:
				kind := outcome.Stray
				switch {
				case !known:
					want.Stray++
				case all[seq].answered:
					if kind = outcome.Duplicate; all[seq].measured {
						want.Duplicates++
					}
				default:
					p := &all[seq]
					p.answered = true
					late := at-p.at > timeout
					if kind = outcome.Answered; late {
						kind = outcome.Late
					}
					overtaken := seq < high
					high = max(high, seq+1)
					for k := range arrived {
						if arrived[k] > seq && p.measured {
							order.Extent = max(order.Extent, int64(len(arrived)-k))
							break
						}
					}
					arrived = append(arrived, seq)
					switch {
					case !p.measured:
						want.Silent--
					case late:
						want.Late++
					default:
						want.Received++
					}
					if p.measured && p.spoiled {
						want.Spoiled--
					}
					if p.measured && overtaken {
						want.Reordered++
					}
				}
				slot, got := w.reply(uint32(from+seq), at)
				if check.Equal(t, got, kind, "%v"); kind == outcome.Answered || kind == outcome.Late {
					check.Equal(t, slot.rtt, max(at-all[seq].at, 1), "a round trip of %d ticks")
				}
			}
			pending := false
			for i := max(len(all)-size, 0); i < len(all); i++ {
				pending = pending || !all[i].answered && !all[i].spoiled && at-all[i].at <= timeout
			}
			check.Equal(t, w.pending(at), pending, "something is pending: %t")
			if check.Equal(t, w.counts, want, "%+v"); t.Failed() {
				return
			}
		}
		losing := int64(0)
		for i := 0; i <= len(all); i++ {
			if i < len(all) && !all[i].answered && !all[i].spoiled {
				if all[i].measured {
					losing++
				}
			} else if losing > 0 && (i == len(all) || all[i].measured) {
				order.LossPeriods++
				order.LongestLoss = max(order.LongestLoss, losing)
				order.LossLengths[min(losing, lossLengths-1)]++
				losing = 0
			}
		}
		w.end()
		check.Equal(t, w.seq, order, "%+v")
	}
}
