package lab

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

// header returns the text of a header file that a vendor published, or skips the test with instructions. None is part
// of this repository: the lab downloads Debian's.
func header(t *testing.T, name, from string) string {
	t.Helper()
	var places []string
	if dir := os.Getenv("REBOUND_HEADERS"); dir != "" {
		places = append(places, filepath.Join(dir, name))
	}
	kernel, _ := filepath.Glob("/usr/src/linux-headers-*/include/linux/mlx5/" + name)
	places = append(places, kernel...)
	if dir, err := cacheDir(); err == nil {
		places = append(places, filepath.Join(dir, "headers", name))
	}
	for _, p := range places {
		if b, err := os.ReadFile(p); err == nil {
			t.Log(p)
			return string(b)
		}
	}
	if name != "CIB_PRM.h" && !testing.Short() {
		k := kit(t)
		if err := k.bringEFA(t.Context()); err != nil && !errors.Is(err, errCannot) {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(k.Dir, "headers", name)); err == nil {
			return string(b)
		}
	}
	t.Skipf("no %s: put it into a folder and name that as REBOUND_HEADERS; it is part of %s", name, from)
	return ""
}

// headers returns the text of several header files.
func headers(t *testing.T, from string, names ...string) (text string) {
	t.Helper()
	for _, name := range names {
		text += header(t, name, from)
	}
	return text
}

// other maps the names of our fields and structures to their names in mlx5_ifc.h if these differ from the manual's, or
// to "" if that header lacks the field or declares it as part of another: by structure and field, or by field alone.
var other = map[string]string{
	"self_lb_en": "self_lb_block", "c_eqn": "c_eqn_or_apu_element", "toeplitz_key": "rx_hash_toeplitz_key",
	"eq_status": "status", "eq_ec": "ec", "eq_oi": "oi", "eq_st": "st", "eq_page_offset": "page_offset",
	"eq_uar_page":      "uar_page",
	"eq_log_page_size": "log_page_size", "eq_consumer_counter": "consumer_counter",
	"eq_producer_counter":  "producer_counter",
	"set_flow_table_entry": "set_fte", "delete_flow_table_entry": "delete_fte", "2err_qp": "qp_2err",
	"2rst_qp":    "qp_2rst",
	"sqd_rts_qp": "sqd2rts_qp", "access_reg": "access_register", "host_endianness": "", "node_desc": "",
	"uid": "", "dbr_umem_id": "", "ric": "", "events": "", "list_size": "", "list_type": "", "td_pd": "",
	"db_record_addr": "", "priority": "",
	"module": "", "psid": "", "time_stamp": "", "cq_umem_id": "", "cq_umem_offset": "", "sqerr2rts_qp_in.ece": "",
	"sqd_rts_qp_in.ece": "", "modify_cq_in.field_select": "",
	// there it has the lowest 16 of 30 bits
	"query_flow_counter_in.dump_to_memory": "", "query_flow_counter_in.num_of_counters": "",
	"packets_hi": "", "packets_lo": "", "octets_hi": "", "octets_lo": "",
	"modify_rmp_in.modify_bitmask": "bitmask", "modify_rqt_in.modify_bitmask": "bitmask",
	"modify_tir_in.modify_bitmask": "bitmask",
}

// bigEndian is where a field is in a structure whose bits are counted from the highest one.
func bigEndian(f parts.Field) span {
	if f.N > 0 {
		return span{8 * f.Off, 32 * f.N}
	}
	return span{8*f.Off + 31 - f.Hi, f.Hi - f.Lo + 1}
}

// TestLayoutsMlx5 compares every field of the ConnectX model's commands and registers with Linux's header.
func TestLayoutsMlx5(t *testing.T) {
	vendor := bitStructs(header(t, "mlx5_ifc.h", "Linux (package linux-headers-*-common, include/linux/mlx5)"))
	checked, unknown := 0, []string{}
	for name, l := range mlx5sim.Layouts() {
		called, kind := name[:strings.LastIndex(name, "_")], name[strings.LastIndex(name, "_"):]
		if o, ok := other[called]; ok {
			called = o
		}
		theirs := vendor["mlx5_ifc_"+called+kind+"_bits"]
		if theirs == nil && called != "" {
			unknown = append(unknown, name)
		}
		if theirs == nil {
			continue
		}
		for field, f := range l.Fields() {
			want := bigEndian(f)
			called := field
			for _, key := range []string{field, name + "." + field} {
				if o, ok := other[key]; ok {
					called = o
				}
			}
			switch found := theirs[called]; {
			case found == nil && called != "":
				unknown = append(unknown, name+"."+field)
			case found == nil:
			case !slices.Contains(found, want):
				t.Errorf("%s.%s is %v here, %v there", name, field, want, found)
			default:
				checked++
			}
		}
	}
	slices.Sort(unknown)
	t.Logf("%d fields agree", checked)
	if len(unknown) > 0 {
		t.Errorf("not in the header, a line in the table above is missing: %s", strings.Join(unknown, ", "))
	}
	if checked < 1500 {
		t.Errorf("%d fields were compared: the header was not read well", checked)
	}
}

// TestLayoutsMlx5Driver does the same for the fields that the driver writes into commands: the header must have a
// structure with a field of that name at that position.
func TestLayoutsMlx5Driver(t *testing.T) {
	vendor := bitStructs(header(t, "mlx5_ifc.h", "Linux (package linux-headers-*-common, include/linux/mlx5)"))
	places := map[string][]span{}
	for _, s := range vendor {
		for name, all := range s {
			places[name] = append(places[name], all...)
		}
	}
	checked, unknown := 0, []string{}
	each(t, "../../nic/drivers/mlx5", func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 5 {
			return
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "set" {
			return
		}
		name, ok := call.Args[0].(*ast.BasicLit)
		off, err1 := number(call.Args[1])
		hi, err2 := number(call.Args[2])
		lo, err3 := number(call.Args[3])
		if !ok || err1 != nil || err2 != nil || err3 != nil {
			return
		}
		field, _ := strconv.Unquote(name.Value)
		want := span{8*off + 31 - hi, hi - lo + 1}
		if off == 0x08 && field == "state" {
			field = "rq_state" // and sq_state, of MODIFY_RQ and MODIFY_SQ: the previous state
		}
		switch found := places[field]; {
		case found == nil:
			unknown = append(unknown, field)
		case field == "allowed_list_size" && want == span{8*0x1f0 + 20, 12}: // 12 bits in older headers, 16 now
		case !slices.Contains(found, want):
			t.Errorf("%s is %v here, one of %v there", field, want, found[:min(len(found), 8)])
		default:
			checked++
		}
	})
	t.Logf("%d fields agree; the header has no %s", checked, strings.Join(unknown, ", "))
	if checked < 30 {
		t.Errorf("%d fields were compared: the driver's source was not read well", checked)
	}
}

// offsets lists the folders with our register names, and how the vendor's header names the registers. Names are
// compared without underscores, in upper case.
var offsets = []struct {
	dir, prefix    string // of our constants: "regCTRLEXT"
	header, from   string
	before, behind string // parts of the macro: "IXGBE_CTRL_EXT", "ENA_REGS_CAPS_EXT_OFF"
	least          int    // least number of registers to be found
	other          map[string]string
}{
	{dir: "../../nic/drivers/ixgbe", prefix: "reg", header: "ixgbe_type.h", from: "DPDK (drivers/net/ixgbe/base)", before: "IXGBE_", least: 40, other: map[string]string{"SWFWSYNC": "GSSR"}},
	{dir: "../../sim/ixgbesim", prefix: "reg", header: "ixgbe_type.h", from: "DPDK (drivers/net/ixgbe/base)",
		before: "IXGBE_", least: 110, other: map[string]string{
			// the datasheet has two addresses of each, the header one
			"MRQC": "", "RETA": "", "RSSRK": "", "MRQCOld": "MRQC", "RETAOld": "RETA", "RSSRKOld": "RSSRK",
			"I2CCTL": "I2CCTL_82599", "SWFW": "GSSR", "QBTC": "QBTC_L", "DCARX": "DCA_RXCTRL",
			"DCATX":   "DCA_TXCTRL_82599",
			"DTXFLGL": "DTXTCPFLGL", "DTXFLGH": "DTXTCPFLGH", "PRC": "PRC64", "PTC": "PTC64",
			"LXONTX": "LXONTXC", "LXOFFTX": "LXOFFTXC", "LXONRX": "LXONRXCNT", "LXOFFRX": "LXOFFRXCNT",
		}},
	{dir: "../../nic/kit/amazonadmin", prefix: "", header: "ena_regs_defs.h", from: "amzn-drivers (kernel/linux/common/ena_com)", before: "ENA_REGS_", behind: "_OFF", least: 10},
	{dir: "../../sim/amazon", prefix: "Reg", header: "ena_regs_defs.h",
		from: "amzn-drivers (kernel/linux/common/ena_com)", before: "ENA_REGS_", behind: "_OFF", least: 22,
		other: map[string]string{"CTRLVERSION": "CONTROLLER_VERSION", "AENQDB": "AENQ_HEAD_DB",
			"READREQ": "MMIO_REG_READ", "RESPLO": "MMIO_RESP_LO", "RESPHI": "MMIO_RESP_HI"}},
	{dir: "../../sim/amazon", prefix: "Reg", header: "efa_regs_defs.h", from: "amzn-drivers (kernel/linux/efa/src)",
		before: "EFA_REGS_", behind: "_OFF", least: 20,
		other: map[string]string{"CTRLVERSION": "CONTROLLER_VERSION", "AQDB": "AQ_PROD_DB", "AENQDB": "AENQ_CONS_DB",
			"READREQ": "MMIO_REG_READ", "RESPLO": "MMIO_RESP_LO",
			"RESPHI": "MMIO_RESP_HI", "ACQTAIL": "", "AENQTAIL": ""}}, // EFA has no tail registers
}

func TestLayoutsRegisters(t *testing.T) {
	for _, o := range offsets {
		t.Run(filepath.Base(o.dir)+" "+o.header, func(t *testing.T) {
			plain := func(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "_", "")) }
			theirs := map[string][]uint64{}
			for name, v := range defines(header(t, o.header, o.from)) {
				if n, ok := strings.CutPrefix(name, o.before); ok && strings.HasSuffix(n, o.behind) {
					theirs[plain(strings.TrimSuffix(n, o.behind))] = v
				}
			}
			checked, unknown := 0, []string{}
			each(t, o.dir, func(n ast.Node) {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					return
				}
				for i, id := range spec.Names {
					name, ok := strings.CutPrefix(id.Name, o.prefix)
					if !ok || i >= len(spec.Values) || name == "" {
						continue
					}
					ours, err := number(spec.Values[i])
					if err != nil {
						continue
					}
					called := name
					if c, ok := o.other[name]; ok {
						called = c
					}
					switch v, ok := theirs[plain(called)]; {
					case called == "":
					case !ok:
						unknown = append(unknown, name)
					case !slices.Contains(v, uint64(ours)):
						t.Errorf("%s is %05xh here, %05x there", name, ours, v)
					default:
						checked++
					}
				}
			})
			t.Logf("%d registers agree; the header has no %s", checked, strings.Join(unknown, ", "))
			if checked < o.least {
				t.Errorf("%d registers were compared, fewer than %d", checked, o.least)
			}
		})
	}
}

func each(t *testing.T, dir string, visit func(ast.Node)) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool { visit(n); return true })
	}
}

func number(e ast.Expr) (int, error) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.INT {
		return 0, fmt.Errorf("no number")
	}
	n, err := strconv.ParseInt(l.Value, 0, 64)
	return int(n), err
}
