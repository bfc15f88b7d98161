package lab

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/parts"
)

// TestLayoutsAmazonCommands compares the fields of the ENA and EFA models' admin commands with the vendor's headers.
func TestLayoutsAmazonCommands(t *testing.T) {
	for _, c := range []struct {
		name, before string
		headers      []string
		layouts      map[string]*parts.Layout
		other        map[string]string // the vendor's name of a field, or "" if it has none
		least        int
	}{
		{"ena", "ena_admin_", []string{"ena_common_defs.h", "ena_admin_defs.h"}, enasim.Layouts(), map[string]string{
			"head": "", "body": "", "rest": "", "sq_ba_low": "sq_ba.mem_addr_low", "sq_ba_high": "sq_ba.mem_addr_high",
			"cq_ba_low": "cq_ba.mem_addr_low", "cq_ba_high": "cq_ba.mem_addr_high",
			"control_length": "control_buffer.length",
			"control_low":    "control_buffer.address.mem_addr_low",
			"control_high":   "control_buffer.address.mem_addr_high",
		}, 30},
		{"efa", "efa_admin_", []string{"efa_common_defs.h", "efa_admin_defs.h", "efa_admin_cmds_defs.h"},
			efasim.Layouts(), map[string]string{
				"head": "", "body": "", "modify_mask": "", "control_addr": "control_buffer.address",
				"control_length": "control_buffer.length",
			}, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			vendor, checked := cStructs(headers(t, "amzn-drivers, and of Linux", c.headers...)), 0
			for name, l := range c.layouts {
				theirs := vendor[c.before+name]
				if theirs == nil {
					t.Errorf("the header has no structure %s%s", c.before, name)
				}
				base := 0
				if _, ok := theirs["opcode"]; !ok {
					base = 32 // newer headers omit the common descriptor from each command
				}
				for field, at := range l.Fields() {
					called, f := field, span{8*at.Off + at.Lo, at.Hi - at.Lo + 1}
					if at.N > 0 {
						f = span{8 * at.Off, 32 * at.N}
					}
					if o, ok := c.other[field]; ok {
						called = o
					}
					there, ok := theirs[called]
					there.off += base
					if field == "phys_page_size_shift" && there.width == 5 {
						there.width = 6 // the width in newer headers
					}
					switch {
					case called == "" || theirs == nil:
					case !ok:
						t.Errorf("%s%s has no %s", c.before, name, called)
					case there != f:
						t.Errorf("%s.%s is bit %d, %d wide, here, and bit %d, %d wide, there", name, field, f.off,
							f.width, there.off, there.width)
					default:
						checked++
					}
				}
			}
			t.Logf("%d fields agree", checked)
			if checked < c.least {
				t.Errorf("%d fields were compared, fewer than %d", checked, c.least)
			}
		})
	}
}

// descriptorBits maps our constants to fields of the vendor's descriptors: a mask has the field's bits in its word, a
// shift their position. A mask may cover several fields.
var descriptorBits = []struct {
	dir    string
	word   int // bits of the word that the constants refer to
	header string
	lines  string // constant, "mask" or "shift", structure, fields
}{
	{"../../nic/drivers/ena", 64, "ena_eth_io_defs.h", `
txMeta mask ena_eth_io_tx_desc meta_desc
txPhase shift ena_eth_io_tx_desc phase
txFirst mask ena_eth_io_tx_desc first
txLast mask ena_eth_io_tx_desc last
txCompReq mask ena_eth_io_tx_desc comp_req
txIDHi shift ena_eth_io_tx_desc req_id_hi
txIDLo shift ena_eth_io_tx_desc req_id_lo
txHeader shift ena_eth_io_tx_desc header_length
metaExtValid mask ena_eth_io_tx_meta_desc ext_valid
metaExtended mask ena_eth_io_tx_meta_desc eth_meta_type
metaStore mask ena_eth_io_tx_meta_desc meta_store
rxWhole mask ena_eth_io_rx_desc first last comp_req
rxDescPhase shift ena_eth_io_rx_desc phase
rxDescID shift ena_eth_io_rx_desc req_id
rxPhase shift ena_eth_io_rx_cdesc_base phase
rxFirst mask ena_eth_io_rx_cdesc_base first
rxLast mask ena_eth_io_rx_cdesc_base last
rxL3Err mask ena_eth_io_rx_cdesc_base l3_csum_err
rxL4Err mask ena_eth_io_rx_cdesc_base l4_csum_err
rxL4Checked mask ena_eth_io_rx_cdesc_base l4_csum_checked
rxL3Mask mask ena_eth_io_rx_cdesc_base l3_proto_idx`},
	{"../../sim/enasim", 32, "ena_eth_io_defs.h", `
txLen mask ena_eth_io_tx_desc length
txReqHi mask ena_eth_io_tx_desc req_id_hi
txMeta mask ena_eth_io_tx_desc meta_desc
txPhase mask ena_eth_io_tx_desc phase
txFirst mask ena_eth_io_tx_desc first
txLast mask ena_eth_io_tx_desc last
txComp mask ena_eth_io_tx_desc comp_req
txMBZ mask ena_eth_io_tx_desc reserved22 reserved1 reserved29 reserved31
metaExt mask ena_eth_io_tx_meta_desc ext_valid
metaType mask ena_eth_io_tx_meta_desc eth_meta_type
metaStore mask ena_eth_io_tx_meta_desc meta_store
metaMBZ mask ena_eth_io_tx_meta_desc reserved0|req_id_lo reserved10 reserved12 reserved13 reserved15 reserved22 reserved25 reserved29 reserved31
tx1DF mask ena_eth_io_tx_desc DF
tx1TSO mask ena_eth_io_tx_desc tso_en
tx1L3 mask ena_eth_io_tx_desc l3_csum_en
tx1L4 mask ena_eth_io_tx_desc l4_csum_en
tx1NoFCS mask ena_eth_io_tx_desc ethernet_fcs_dis
tx1Partial mask ena_eth_io_tx_desc l4_csum_partial
tx1MBZ mask ena_eth_io_tx_desc reserved5 reserved16 reserved18 reserved21
tx3MBZ mask ena_eth_io_tx_desc reserved16_w2
rxL3Err mask ena_eth_io_rx_cdesc_base l3_csum_err
rxL4Err mask ena_eth_io_rx_cdesc_base l4_csum_err
rxFrag mask ena_eth_io_rx_cdesc_base ipv4_frag
rxChecked mask ena_eth_io_rx_cdesc_base l4_csum_checked
rxPhase mask ena_eth_io_rx_cdesc_base phase
rxFirst mask ena_eth_io_rx_cdesc_base first
rxLast mask ena_eth_io_rx_cdesc_base last
rxBufferBit mask ena_eth_io_rx_cdesc_base buffer
intrRxDelay mask ena_eth_io_intr_reg rx_intr_delay
intrTxShift shift ena_eth_io_intr_reg tx_intr_delay
intrUnmask mask ena_eth_io_intr_reg intr_unmask
intrKeep mask ena_eth_io_intr_reg no_moderation_update|reserved`},
	{"../../nic/drivers/efa", 64, "efa_io_defs.h", `
txImmediate mask efa_io_tx_meta_desc has_imm
txInline mask efa_io_tx_meta_desc inline_msg
txIsMeta mask efa_io_tx_meta_desc meta_desc
txPhase shift efa_io_tx_meta_desc phase
txFirst mask efa_io_tx_meta_desc first
txLast mask efa_io_tx_meta_desc last
txCompReq mask efa_io_tx_meta_desc comp_req
txDestination shift efa_io_tx_meta_desc dest_qp_num
txLength shift efa_io_tx_meta_desc length
txHandle shift efa_io_tx_meta_desc ah
txKey shift efa_io_tx_buf_desc lkey
rxLength shift efa_io_rx_desc length
rxKey shift efa_io_rx_desc lkey
rxWhole mask efa_io_rx_desc first last
cqPhase shift efa_io_cdesc_common phase
cqStatus shift efa_io_cdesc_common status
cqImmediate mask efa_io_cdesc_common has_imm
cqKind mask efa_io_cdesc_common status q_type op_type unsolicited
cqPair shift efa_io_cdesc_common qp_num
cqLength shift efa_io_rx_cdesc length`},
	{"../../sim/efasim", 8, "efa_io_defs.h", `
ctrl1Op mask efa_io_tx_meta_desc op_type
ctrl1Imm mask efa_io_tx_meta_desc has_imm
ctrl1Inline mask efa_io_tx_meta_desc inline_msg
ctrl1Ext mask efa_io_tx_meta_desc meta_extension
ctrl1Meta mask efa_io_tx_meta_desc meta_desc
ctrl2Phase mask efa_io_tx_meta_desc phase
ctrl2First mask efa_io_tx_meta_desc first
ctrl2Last mask efa_io_tx_meta_desc last
ctrl2Comp mask efa_io_tx_meta_desc comp_req
ctrl2MBZ mask efa_io_tx_meta_desc reserved25 reserved29
cqeImm mask efa_io_cdesc_common has_imm
cqeOpShift shift efa_io_cdesc_common op_type
cqeUnsolicited mask efa_io_cdesc_common unsolicited`},
	{"../../sim/efasim", 32, "efa_io_defs.h", `
rxKey mask efa_io_rx_desc lkey
rxFirst mask efa_io_rx_desc first
rxLast mask efa_io_rx_desc last
rxMBZ mask efa_io_rx_desc reserved`},
}

// TestLayoutsAmazonDescriptors compares the drivers' and models' descriptor constants with the vendor's headers.
func TestLayoutsAmazonDescriptors(t *testing.T) {
	for _, c := range descriptorBits {
		vendor, ours := cStructs(header(t, c.header, "amzn-drivers, and of Linux")), constants(t, c.dir)
		lines := strings.Split(strings.TrimSpace(c.lines), "\n")
		for _, line := range lines {
			w := strings.Fields(line)
			v, ok := ours[w[0]]
			if !ok {
				t.Errorf("%s has no constant %s", c.dir, w[0])
				continue
			}
			want := uint64(0)
			for _, field := range w[3:] {
				f, ok := span{}, false
				for name := range strings.SplitSeq(field, "|") { // alternatives, depending on the header
					if at, has := vendor[w[2]][name]; has {
						f, ok = at, true
					}
				}
				switch {
				case !ok:
					t.Errorf("%s has no %s", w[2], field)
				case w[1] == "shift":
					want = uint64(f.off % c.word)
				default:
					want |= (1<<f.width - 1) << (f.off % c.word)
				}
			}
			if v != want {
				t.Errorf("%s: %s is %#x, by %s %#x", c.dir, w[0], v, strings.Join(w[2:], "."), want)
			}
		}
		t.Logf("%s: %d constants", c.dir, len(lines))
	}
}

func constants(t *testing.T, dir string) map[string]uint64 {
	exprs, all := map[string]ast.Expr{}, map[string]uint64{}
	each(t, dir, func(n ast.Node) {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, s := range d.Specs {
				s := s.(*ast.ValueSpec)
				for i, id := range s.Names {
					if i < len(s.Values) {
						exprs[id.Name] = s.Values[i]
					}
				}
			}
		}
	})
	var value func(e ast.Expr, by []string) (uint64, bool)
	value = func(e ast.Expr, by []string) (uint64, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			n, err := number(e)
			return uint64(n), err == nil
		case *ast.ParenExpr:
			return value(e.X, by)
		case *ast.Ident:
			if exprs[e.Name] == nil || slices.Contains(by, e.Name) {
				return 0, false
			}
			return value(exprs[e.Name], append(by, e.Name))
		case *ast.BinaryExpr:
			x, ok := value(e.X, by)
			y, ok2 := value(e.Y, by)
			switch e.Op {
			case token.SHL:
				return x << y, ok && ok2
			case token.OR:
				return x | y, ok && ok2
			case token.ADD:
				return x + y, ok && ok2
			case token.SUB:
				return x - y, ok && ok2
			case token.MUL:
				return x * y, ok && ok2
			}
		}
		return 0, false
	}
	for name, e := range exprs {
		if v, ok := value(e, []string{name}); ok {
			all[name] = v
		}
	}
	return all
}
