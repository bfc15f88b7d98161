package efasim

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
)

func expect(t testing.TB, what string, c []byte, req uint16, status, flags uint8, num uint16) {
	t.Helper()
	if c == nil || le.Uint16(c) != req || c[2] != status || c[3]&^1 != flags || le.Uint16(c[4:]) != num {
		t.Errorf("%s: completion %x, want request %d, status %d, flags %#x, QP %#x", what, c, req, status, flags, num)
	}
}

// A message of each profile, QP type, WQE size and completion size, inline and from memory, in both directions.
func TestMessages(t *testing.T) {
	for _, p := range Profiles() {
		for _, typ := range []uint8{typeUD, typeSRD} {
			for _, size := range []int{64, 128} {
				if size == 128 && p.Inline == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%d", p.Name, typ, size), func(t *testing.T) {
					x, y := pair(t, Options{Profile: p}, Options{Profile: p}, sim.Impairment{Seed: 1})
					q := x.qpair(typ, size, x.completions(16, nil)).ready()
					r := y.qpair(typ, size, y.completions(32, nil)).ready()
					there, back := x.handle(y.m.gid), y.handle(x.m.gid)
					head := 0
					if typ == typeUD {
						head = grhSize
					}
					for i := range uint16(3 * qDepth) { // around the rings
						r.offer(2048, i)
						text := fmt.Sprintf("message %d", i)
						f := q.inline(i, r.num, there, text)
						if i%2 == 1 {
							copy(q.mem.Bytes[64:], text)
							half, at := uint32(len(text)/2), q.mem.IOVA+64
							f = fields{0: i, 4: r.num, 6: uint16(2), 12: there, 16: uint32(testKey), 32: half,
								36: q.lkey, 40: at,
								48: uint32(len(text)) - half, 52: q.lkey, 56: at + uint64(half)}
						}
						expect(t, "send", q.sends(f), i, compOK, cqeSend, q.num)
						c := r.rcq.take()
						expect(t, "receive", c, i, compOK, cqeRecv, r.num)
						if n := int(le.Uint16(c[6:])); n != len(text)+head || le.Uint16(c[8:]) != back ||
							le.Uint16(c[10:]) != q.num {
							t.Errorf("completion %x: length %d of %d, AH %d, QP %#x", c, n, len(text), le.Uint16(c[8:]),
								le.Uint16(c[10:]))
						}
						check.Equal(t, r.got(2048, i, len(text)+head)[head:], text, "received %q")
					}
					k, l := x.m.Counters(), y.m.Counters()
					if k.SendWRs != 3*qDepth || l.RecvWRs != 3*qDepth || k.SendBytes != l.RecvBytes ||
						k.TxBytes != l.RxBytes || l.RxDrops != 0 {
						t.Errorf("counters %+v and %+v", k, l)
					}
				})
			}
		}
	}
}

// DMA reads per message before the wire: none if inline, one from memory.
func TestBusCost(t *testing.T) {
	x, y := pair(t, Options{}, Options{}, sim.Impairment{Seed: 1})
	q, r := x.qpair(typeUD, 64, x.completions(16, nil)).ready(), y.qpair(typeUD, 64, y.completions(16, nil)).ready()
	ah := x.handle(y.m.gid)
	r.offer(2048, 0, 1)
	x.settle()
	before := x.Port.Counts()
	q.post(q.inline(0, r.num, ah, "x"))
	if d := x.Port.Counts().Since(before); d.DMARead != 0 || d.DMAWrite != 1 || d.MMIOWrite != 2 {
		t.Errorf("inline: %+v", d)
	}
	before = x.Port.Counts()
	q.post(fields{0: uint16(1), 4: r.num, 6: uint16(1), 12: ah, 16: uint32(testKey), 32: uint32(100), 36: q.lkey,
		40: q.mem.IOVA + 5000})
	if d := x.Port.Counts().Since(before); d.DMARead != 1 || d.DMAWrite != 1 || d.MMIOWrite != 2 {
		t.Errorf("from memory: %+v", d)
	}
}

// On a wire that loses, duplicates and reorders frames, each SRD message arrives once and is acknowledged. UD loses
// messages.
func TestImpaired(t *testing.T) {
	bad := sim.Impairment{Loss: 0.2, Duplicate: 0.2, Reorder: 0.3, Seed: 3}
	for _, typ := range []uint8{typeUD, typeSRD} {
		x, y := pair(t, Options{Seed: 4}, Options{Seed: 5}, bad)
		q, r := x.qpair(typ, 64, x.completions(16, nil)).ready(), y.qpair(typ, 64, y.completions(16, nil)).ready()
		ah := x.handle(y.m.gid)
		const rounds, burst = 100, 8
		arrived := map[string]int{}
		completed, ordered, last := 0, true, ""
		for n := range uint16(rounds) {
			for i := range uint16(burst) {
				r.offer(256, i)
			}
			for i := range uint16(burst) {
				q.push(q.inline(n*burst+i, r.num, ah, fmt.Sprintf("%05d", n*burst+i)))
			}
			q.ring()
			x.settle()
			for c := q.scq.take(); c != nil; c = q.scq.take() {
				completed++
				if c[2] != compOK {
					t.Errorf("request %d: status %d", le.Uint16(c), c[2])
				}
			}
			for c := r.rcq.take(); c != nil; c = r.rcq.take() {
				text := r.got(256, le.Uint16(c), int(le.Uint16(c[6:])))
				if typ == typeUD {
					text = text[grhSize:]
				}
				ordered = ordered && text > last
				last = text
				arrived[text]++
			}
			if typ == typeUD { // a lost message leaves its receive posted: start again
				r.restart()
			}
		}
		check.Equal(t, completed, rounds*burst, "%d completions")
		k, l := x.m.Counters(), y.m.Counters()
		switch {
		case typ == typeUD:
			if len(arrived) > rounds*burst*9/10 || len(arrived) < rounds*burst/2 || ordered {
				t.Errorf("UD: %d of %d arrived, in order %v", len(arrived), rounds*burst, ordered)
			}
		case len(arrived) != rounds*burst || ordered || k.RetransPackets == 0 || l.Duplicates == 0:
			t.Errorf("SRD: %d of %d arrived, in order %v, %+v, %+v", len(arrived), rounds*burst, ordered, k, l)
		default:
			for text, n := range arrived {
				if n != 1 {
					t.Errorf("SRD: %q arrived %d times", text, n)
				}
			}
			if k.RetransTimeouts != k.RetransPackets || k.RetransBytes != 5*k.RetransPackets || k.Unresponsive != 0 {
				t.Errorf("network statistics %+v", k)
			}
		}
		x.Clean()
		y.Clean()
	}
}
