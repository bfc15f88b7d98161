package enasim

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// TestEachBitOfCommands executes every command and each bit of it inverted, and reads each feature of devices with
// other options. The file has what the device answers and what it reports.
func TestEachBitOfCommands(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		op  uint8
		id  uint8
		add func(x *rig, page uint64) fields
	}{
		{opCreateCQ, 0, func(_ *rig, page uint64) fields { return fields{5: uint8(4), 6: uint16(testDepth), 12: page} }},
		{opCreateSQ, 0, func(x *rig, page uint64) fields {
			return fields{4: uint8(dirTX << 5), 6: uint8(placeHost), 7: uint8(1), 8: x.cq(page, 2),
				10: uint16(testDepth), 12: page}
		}},
		{opCreateSQ, 1, func(x *rig, page uint64) fields {
			return fields{4: uint8(dirTX << 5), 6: uint8(placeDevice), 7: uint8(1), 8: x.cq(page, 2),
				10: uint16(testDepth)}
		}},
		{opDestroyCQ, 0, func(x *rig, page uint64) fields { return fields{4: x.cq(page, 4)} }},
		{opDestroySQ, 0, func(x *rig, page uint64) fields {
			return fields{4: x.sq(page), 6: uint8(dirRX << 5)}
		}},
		{opGetStats, 0, nil}, {opGetStats, statsENI, nil}, {opGetStats, statsMetrics, func(_ *rig, page uint64) fields {
			return fields{4: uint32(512), 8: page, 24: uint64(0x2a)}
		}},
		{opSetFeature, featMTU, func(*rig, uint64) fields { return fields{20: uint32(9000)} }},
		{opSetFeature, featAENQ, func(*rig, uint64) fields { return fields{24: uint32(eventGroups)} }},
		{opSetFeature, featHostAttr, func(_ *rig, page uint64) fields { return fields{20: page} }},
		{opSetFeature, featLLQ, func(*rig, uint64) fields {
			return fields{30: uint16(1), 34: uint16(llq128), 38: uint16(2), 42: uint16(2)}
		}},
		{opSetFeature, featOffload, func(*rig, uint64) fields { return fields{28: uint32(1)} }},
		{opSetFeature, featHash, func(_ *rig, page uint64) fields {
			return fields{3: uint8(4), 4: uint32(48), 8: page + 512, 24: uint32(hashToeplitz)}
		}},
		{opSetFeature, featHashInput, func(_ *rig, page uint64) fields {
			return fields{3: uint8(4), 4: uint32(256), 8: page + 1024}
		}},
		{opSetFeature, featTable, func(_ *rig, page uint64) fields {
			return fields{3: uint8(4), 4: uint32(512), 8: page + 2048, 24: uint16(tableLog), 28: uint32(noInline)}
		}},
		{opSetFeature, featTable, func(*rig, uint64) fields { return fields{24: uint16(tableLog), 28: uint32(5), 32: uint16(1)} }},
	} {
		x := openRig(t, Options{})
		page := x.Alloc(4096)
		x.queue(dirRX, false, 0)
		x.queue(dirRX, false, 0)
		x.OK(opSetFeature, about(featLLQ, fields{30: uint16(1), 34: uint16(llq128), 38: uint16(2), 42: uint16(2)}))
		le.PutUint32(page.Bytes, 3)
		le.PutUint16(page.Bytes[184:], 0x200)
		le.PutUint32(page.Bytes[512:], keyWords)
		x.spread()
		f := simtest.Flips{Rig: x.Rig, First: 4, Little: true, Build: func() []byte {
			e := make([]byte, amazon.Entry)
			if c.add != nil {
				f := c.add(x, page.IOVA)
				f.Put(e)
			}
			if c.op == opGetStats || c.op == opSetFeature {
				e[map[uint8]int{opGetStats: 16, opSetFeature: 17}[c.op]] = c.id
			}
			return e
		}}
		f.Run = func(in []byte) (string, bool) {
			s, r := x.Do(c.op, fields{3: in[3], 4: [60]byte(in[4:])})
			switch {
			case s == 0 && c.op == opCreateCQ:
				x.Do(opDestroyCQ, fields{4: le.Uint16(r)})
			case s == 0 && c.op == opCreateSQ:
				x.Do(opDestroySQ, fields{4: le.Uint16(r), 6: in[4]})
				x.Do(opDestroyCQ, fields{4: le.Uint16(in[8:])})
			}
			return fmt.Sprint(s, " ", strings.TrimRight(hex.EncodeToString(r[:40]), "0")), s == 0
		}
		fmt.Fprintf(&b, "opcode %d of %d\n%v", c.op, c.id, &f)
	}
	for _, o := range []Options{{}, {NoLLQ: true, BasicQueues: true, NoMetrics: true},
		{PreferWide: true, NoMeta: true, Burst: 512,
			Hints: Hints{1, 2, 3, 4, 5, 6, 7, 8}, MaxMTU: 1500, Queues: 3, NoRxChecks: true}} {
		x := openRig(t, o)
		for id := range uint8(33) {
			page := x.Alloc(4096)
			s, r := x.Do(opGetFeature, about(id, fields{3: uint8(4), 4: uint32(512), 8: page.IOVA, 18: uint8(1)}))
			fmt.Fprintf(&b, "%d: %d %x %s %q\n", id, s, r, strings.TrimRight(hex.EncodeToString(page.Bytes), "0"),
				x.Port.Violations())
			x.Port.ForgetViolations()
		}
	}
	golden.Equal(t, "testdata/commands.txt", b.String())
}

// cq returns the index of a new completion queue; sq the one of a new receive queue.
func (x *rig) cq(page uint64, words uint8) uint16 {
	_, r := x.Do(opCreateCQ, fields{5: words, 6: uint16(testDepth), 12: page})
	return le.Uint16(r)
}

func (x *rig) sq(page uint64) uint16 {
	_, r := x.Do(opCreateSQ, fields{4: uint8(dirRX << 5), 6: uint8(placeHost), 7: uint8(1), 8: x.cq(page, 4),
		10: uint16(testDepth), 12: page})
	return le.Uint16(r)
}
