package efasim

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// TestEachBitOfCommands executes every command and each bit of it inverted, and reads each feature of each generation.
// The file has what the device answers and what it reports.
func TestEachBitOfCommands(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name string
		op   uint8
		add  func(x *rig, c *cring, q *qpair, page uint64) fields
	}{
		{"CREATE_QP", opCreateQP, func(_ *rig, _ *cring, q *qpair, _ uint64) fields { return q.create() }},
		{"MODIFY_QP to RTR", opModifyQP, func(x *rig, _ *cring, q *qpair, _ uint64) fields {
			x.Do(opModifyQP, fields{4: uint32(modState), 8: q.handle, 12: uint32(stateReset)})
			x.Do(opModifyQP, fields{4: uint32(modState | modQKey), 8: q.handle, 12: uint32(stateInit),
				20: uint32(testKey)})
			return fields{4: uint32(modState), 8: q.handle, 12: uint32(stateRTR)}
		}},
		{"MODIFY_QP", opModifyQP, func(_ *rig, _ *cring, q *qpair, _ uint64) fields {
			return fields{4: uint32(modState | modQKey | modPSN), 8: q.handle, 12: uint32(stateRTS),
				20: uint32(testKey)}
		}},
		{"QUERY_QP", opQueryQP, func(_ *rig, _ *cring, q *qpair, _ uint64) fields { return fields{4: q.handle} }},
		{"DESTROY_QP", opDestroyQP, func(x *rig, _ *cring, q *qpair, _ uint64) fields {
			_, r := x.Do(opCreateQP, q.create())
			return fields{4: le.Uint32(r)}
		}},
		{"CREATE_AH", opCreateAH, func(x *rig, _ *cring, _ *qpair, _ uint64) fields { return fields{4: x.m.gid, 20: x.pd} }},
		{"DESTROY_AH", opDestroyAH, func(x *rig, _ *cring, _ *qpair, _ uint64) fields {
			_, r := x.Do(opCreateAH, fields{4: x.m.gid, 20: x.pd})
			return fields{4: le.Uint16(r), 6: x.pd}
		}},
		{"REG_MR", opRegMR, func(x *rig, _ *cring, _ *qpair, page uint64) fields { return region(x.pd, page) }},
		{"REG_MR, list", opRegMR, func(x *rig, _ *cring, _ *qpair, page uint64) fields {
			return fields{3: uint8(cmdCtrlData), 4: x.pd, 8: uint32(16), 12: page, 40: uint64(8192), 48: uint8(12),
				49: uint8(7), 56: page}
		}},
		{"DEREG_MR", opDeregMR, func(x *rig, _ *cring, _ *qpair, page uint64) fields {
			_, r := x.Do(opRegMR, region(x.pd, page))
			return fields{4: le.Uint32(r)}
		}},
		{"CREATE_CQ", opCreateCQ, func(x *rig, c *cring, _ *qpair, page uint64) fields { return completions(x, page) }},
		{"DESTROY_CQ", opDestroyCQ, func(x *rig, c *cring, _ *qpair, page uint64) fields {
			_, r := x.Do(opCreateCQ, completions(x, page))
			return fields{4: le.Uint16(r)}
		}},
		{"CREATE_EQ", opCreateEQ, func(_ *rig, _ *cring, _ *qpair, page uint64) fields { return events(page) }},
		{"DESTROY_EQ", opDestroyEQ, func(x *rig, _ *cring, _ *qpair, page uint64) fields {
			_, r := x.Do(opCreateEQ, events(page))
			return fields{4: le.Uint16(r)}
		}},
		{"DEALLOC_PD", opDeallocPD, func(x *rig, _ *cring, _ *qpair, _ uint64) fields {
			_, r := x.Do(opAllocPD, nil)
			return fields{4: le.Uint16(r)}
		}},
		{"DEALLOC_UAR", opDeallocUAR, func(x *rig, _ *cring, _ *qpair, _ uint64) fields {
			_, r := x.Do(opAllocUAR, nil)
			return fields{4: le.Uint16(r)}
		}},
		{"GET_FEATURE", opGetFeature, func(*rig, *cring, *qpair, uint64) fields { return fields{17: uint8(1)} }},
		{"SET_FEATURE", opSetFeature, func(*rig, *cring, *qpair, uint64) fields {
			return fields{17: uint8(featAENQ), 24: uint32(4)}
		}},
		{"SET_FEATURE, host", opSetFeature, func(_ *rig, _ *cring, _ *qpair, page uint64) fields {
			return fields{3: uint8(cmdCtrlData), 4: uint32(4096), 8: page, 17: uint8(featHost)}
		}},
		{"GET_STATS", opGetStats, nil},
	} {
		x, cq, q, _ := loop(t, Options{}, typeUD)
		page := x.Alloc(8192)
		for i := range 2 {
			le.PutUint64(page.Bytes[8*i:], page.IOVA+4096*uint64(i))
		}
		f := simtest.Flips{Rig: x.Rig, First: 4, Little: true, Build: func() []byte {
			e := make([]byte, amazon.Entry)
			if c.add != nil {
				c.add(x, cq, q, page.IOVA).Put(e)
			}
			return e
		}}
		f.Run = func(in []byte) (string, bool) {
			s, r := x.Do(c.op, fields{3: in[3], 4: [60]byte(in[4:])})
			if s == 0 {
				x.undo(c.op, in, r)
			}
			return fmt.Sprint(s, " ", strings.TrimRight(hex.EncodeToString(r[:40]), "0")), s == 0
		}
		fmt.Fprintf(&b, "%s\n%v", c.name, &f)
	}
	for _, p := range Profiles() {
		x := openRig(t, Options{Profile: p})
		for id := range uint8(20) {
			s, r := x.Do(opGetFeature, fields{17: id})
			fmt.Fprintf(&b, "%s %d: %d %x %q\n", p.Name, id, s, r, x.Port.Violations())
			x.Port.ForgetViolations()
		}
	}
	golden.Equal(t, "testdata/commands.txt", b.String())
}

// undo frees what a command created.
func (x *rig) undo(op uint8, in, r []byte) {
	switch op {
	case opCreateQP:
		x.Do(opDestroyQP, fields{4: le.Uint32(r)})
	case opCreateAH:
		x.Do(opDestroyAH, fields{4: le.Uint16(r), 6: le.Uint16(in[20:])})
	case opRegMR:
		x.Do(opDeregMR, fields{4: le.Uint32(r)})
	case opCreateCQ:
		x.Do(opDestroyCQ, fields{4: le.Uint16(r)})
	case opCreateEQ:
		x.Do(opDestroyEQ, fields{4: le.Uint16(r)})
	}
}

func region(pd uint16, page uint64) fields {
	return fields{4: pd, 8: page, 40: uint64(4096), 48: uint8(12), 49: uint8(7), 56: page}
}

func completions(x *rig, page uint64) fields {
	return fields{5: uint8(4), 6: uint16(cqDepth), 12: page, 24: x.m.opt.Profile.SubCQs, 26: x.uar}
}

func events(page uint64) fields {
	return fields{4: uint16(64), 6: uint8(1), 7: uint8(4), 8: page, 16: uint8(1)}
}
