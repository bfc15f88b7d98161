package mlx4sim

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/sim/parts"
)

// place is a field's position in the vendor's file: bits from the structure's start, counted as the file does.
type place struct{ bit, width int }

// vendorLayouts reads the structures of iPXE's MT25408_PRM.h, which the vendor generated: fields are in dwords, low
// bits first.
func vendorLayouts(text string) map[string]map[string]place {
	one := regexp.MustCompile(`(?s)struct\s+hermonprm_(\w+)_st\s*\{(.*?)\n\}`)
	field := regexp.MustCompile(`^\s*pseudo_bit_t\s+(\w+)\[(\w+)\]`)
	inner := regexp.MustCompile(`^\s*struct\s+hermonprm_(\w+)_st\s+(\w+)(?:\[(\w+)\])?`)
	body := map[string]string{}
	for _, m := range one.FindAllStringSubmatch(text, -1) {
		body[m[1]] = m[2]
	}
	number := func(s string) int {
		n, _ := strconv.ParseInt(s, 0, 32)
		return int(n)
	}
	var size func(name string, into map[string]place) int
	size = func(name string, into map[string]place) (at int) {
		for _, line := range strings.Split(body[name], "\n") {
			if m := field.FindStringSubmatch(line); m != nil {
				into[m[1]] = place{at, number(m[2])}
				at += number(m[2])
			} else if m := inner.FindStringSubmatch(line); m != nil {
				sub := map[string]place{}
				n := size(m[1], sub)
				for f, p := range sub {
					into[m[2]+"."+f] = place{at + p.bit, p.width}
				}
				at += n * max(1, number(m[3]))
			}
		}
		return at
	}
	all := map[string]map[string]place{}
	for name := range body {
		all[name] = map[string]place{}
		size(name, all[name])
	}
	return all
}

// The model's layouts equal the vendor's, field by field, for all names that both have. The file is not part of this
// repository: MT25408_PRM is its path, or it is in the folder of recordings.
func TestVendorLayouts(t *testing.T) {
	file := os.Getenv("MT25408_PRM")
	if file == "" {
		file = filepath.Join("..", "..", "..", "..", "shared", "witness", "MT25408_PRM.h")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("the vendor's layouts are not here: %v (src/drivers/infiniband/MT25408_PRM.h of iPXE; MT25408_PRM names it)", err)
	}
	vendor := vendorLayouts(string(text))
	// Fields of firmware later than the file, as written by Linux.
	later := map[string]bool{"counter_index": true, "vlan_index": true, "fl": true}
	compared := 0
	for _, c := range []struct {
		ours   *parts.Layout
		theirs string
		prefix string // of their names
		rename map[string]string
	}{
		{fwOut, "query_fw", "", nil}, {adapterOut, "query_adapter", "", nil}, {devCap, "query_dev_cap", "", nil}, {mptLayout, "mpt", "", nil},
		{eqLayout, "eqc", "", nil}, {cqLayout, "completion_queue_context", "", nil}, {srqLayout, "srq_context", "", nil},
		{qpLayout, "queue_pair_ee_context_entry", "", map[string]string{"local_qpn": "local_qpn_een", "remote_qpn": "remote_qpn_een"}},
		{qpLayout, "queue_pair_ee_context_entry", "primary_address_path.", map[string]string{"my_lid": "my_lid_smac_idx", "grh": "grh_ip"}},
		{initHCA, "init_hca", "", nil}, {initHCA, "init_hca", "tpt_parameters.", nil}, {initHCA, "init_hca", "multicast_parameters.", nil},
		{initHCA, "init_hca", "uar_parameters.", nil}, {initHCA, "init_hca", "qpc_eec_cqc_eqc_rdb_parameters.", nil},
		{av, "wqe_segment_ud", "ud_address_vector.", map[string]string{"port": "port_number", "my_lid": "my_lid_path_bits"}},
		{av, "wqe_segment_ud", "", map[string]string{"dqpn": "destination_qp", "qkey": "q_key"}},
	} {
		fields := vendor[c.theirs]
		if fields == nil {
			t.Errorf("there is no structure %s", c.theirs)
		}
		for name, f := range c.ours.Fields() {
			their := name
			if r := c.rename[name]; r != "" {
				their = r
			}
			p, ok := fields[c.prefix+their]
			want := place{8*f.Off + f.Lo, f.Hi - f.Lo + 1}
			if f.N > 0 { // the high dword comes first
				for _, suffix := range []string{"_h", "_addr_h"} {
					if !ok {
						p, ok = fields[c.prefix+their+suffix]
					}
				}
				want = place{8 * f.Off, 32}
			}
			if !ok || later[name] {
				continue
			}
			if name == "mtt_adr" {
				want.width = 8 // of the high dword
			}
			if compared++; p != want {
				t.Errorf("%s: %s is bit %d (%xh.%d), %d wide; the vendor's is bit %d (%xh.%d), %d wide", c.theirs, name,
					want.bit, want.bit/32*4, want.bit%32, want.width,
					p.bit, p.bit/32*4, p.bit%32, p.width)
			}
		}
	}
	t.Logf("%d fields compared", compared)
	if compared < 240 {
		t.Errorf("%d fields were compared, expected 240 at least", compared)
	}
}
