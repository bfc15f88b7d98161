package nictest

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/polling"
)

// checkTestPackets: STAMP packets of every kind, alone and in bursts, are sent with a transmit timestamp between the
// start of their pass and now, and with a correct checksum.
func checkTestPackets(x *rig) {
	x.open(1)
	defer x.close()
	r := newKindsResponder(x)
	x.resp = []*fastpath.Responder{r}
	sequence := uint32(0)
	for _, burst := range []int{1, 2, 20, x.h.Ring/2 - 4} {
		for _, size := range []int{86, 169, 170, 190, 227, 300, 1500} {
			for _, tagged := range []bool{false, true} {
				var reqs [][]byte
				for range burst {
					f := Kind{"stamp", false, size, 1}.Frame()
					binary.BigEndian.PutUint32(f[42:], sequence)
					sequence++
					finish(f)
					if tagged {
						f = slices.Insert(f, 12, 0x81, 0, 0, 100)
					}
					reqs = append(reqs, f)
				}
				began := r.Loop.Begin()
				x.send(reqs...)
				x.settle()
				x.reflected(reqs, tagged, began, polling.TSC())
			}
		}
	}
	if s := r.Stats(); s[fastpath.AnsweredSTAMPv4] != uint64(sequence) || s.Refused() != 0 {
		x.Errorf("%d test packets, counted %v", sequence, s)
	}
}

// reflected checks that the device has sent the reply to each of reqs, in order, with timestamps from began to now.
func (x *rig) reflected(reqs [][]byte, tagged bool, began, now uint64) {
	x.Helper()
	ntp := func(tick uint64) uint64 { return 1<<60 + tick>>1 } // newKindsResponder's clock
	got := x.received()
	if len(got) != len(reqs) {
		x.Fatalf("%d replies to %d test packets of %d bytes", len(got), len(reqs), len(reqs[0]))
	}
	for i, f := range got {
		q := reqs[i]
		if tagged {
			if !bytes.Equal(f[12:16], q[12:16]) {
				x.Fatalf("the tag of\n%x\nis not that of\n%x", f, q)
			}
			f, q = slices.Delete(bytes.Clone(f), 12, 16), slices.Delete(bytes.Clone(q), 12, 16)
		}
		p, sent := f[42:], q[42:]
		t3, t2 := binary.BigEndian.Uint64(p[4:]), binary.BigEndian.Uint64(p[16:])
		if !bytes.Equal(p[:4], sent[:4]) || !bytes.Equal(p[24:38], sent[:14]) {
			x.Fatalf("reply %d of %d is not that of its request:\n%x\n%x", i, len(got), f, q)
		}
		if t2 != ntp(began) || t3 < t2 || t3 > ntp(now) {
			x.Fatalf("reply %d of %d, %d bytes: T2 %d, T3 %d, began at %d, now %d", i, len(got), len(f), t2, t3,
				ntp(began), ntp(now))
		}
		whole := bytes.Clone(f)
		if finish(whole); !bytes.Equal(whole, f) {
			x.Fatalf("reply %d of %d: checksums of\n%x\nshould be those of\n%x", i, len(got), f, whole)
		}
	}
}
