package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// cibCommands maps commands of the ConnectX model to the structures of iPXE's driver.
var cibCommands = map[string]string{
	"create_cq_in": "golan_create_cq_mbox_in", "create_cq_out": "golan_create_cq_mbox_out",
	"destroy_cq_in": "golan_destroy_cq_mbox_in",
	"create_eq_in":  "golan_create_eq_mbox_in", "create_eq_out": "golan_create_eq_mbox_out",
	"destroy_eq_in":  "golan_destroy_eq_mbox_in",
	"create_mkey_in": "golan_create_mkey_mbox_in", "create_mkey_out": "golan_create_mkey_mbox_out",
	"destroy_mkey_in": "golan_destroy_mkey_mbox_in",
	"create_qp_in":    "golan_create_qp_mbox_in", "create_qp_out": "golan_create_qp_mbox_out",
	"destroy_qp_in":  "golan_destroy_qp_mbox_in",
	"rst2init_qp_in": "golan_modify_qp_mbox_in", "init2rtr_qp_in": "golan_modify_qp_mbox_in",
	"rtr2rts_qp_in":   "golan_modify_qp_mbox_in",
	"manage_pages_in": "golan_manage_pages_inbox", "query_pages_out": "golan_query_pages_outbox",
	"teardown_hca_in": "golan_cmd_teardown_hca_mbox_in",
	"alloc_pd_out":    "golan_alloc_pd_mbox_out", "dealloc_pd_in": "golan_dealloc_pd_mbox_in",
	"alloc_uar_out": "golan_alloc_uar_mbox_out", "dealloc_uar_in": "golan_free_uar_mbox_in",
	"query_hca_cap_out": "golan_cmd_query_hca_cap_mbox_out",
}

// cibOther maps fields that have another name in iPXE: to the byte or word that contains them.
var cibOther = map[string]string{
	"op_mod": "opmod", "function_id": "func_id", "input_num_entries": "num_entries", "log_cq_size": "log_sz_usr_page",
	"uar_page":      "usr_page",
	"log_page_size": "log_pg_sz", "cqe_sz": "cqe_sz_flags", "primary_address_path.vhca_port_num": "port",
}

// cibWrong are members that iPXE does not use, and whose position differs from Linux's header: the two counters are
// swapped.
var cibWrong = []string{"free_ar", "hw_rq_counter", "sw_rq_counter"}

// TestLayoutsCIB compares the ConnectX model's commands with the structures of iPXE's driver. These consist of bytes,
// so a field of ours must be inside the member or, if it was widened since, contain the member.
func TestLayoutsCIB(t *testing.T) {
	vendor := cStructs(header(t, "CIB_PRM.h", "iPXE (src/drivers/infiniband)"))
	checked, unknown := 0, 0
	ours := mlx5sim.Layouts()
	for name, s := range cibCommands {
		if vendor[s] == nil || ours[name] == nil {
			t.Errorf("%s or %s is missing", name, s)
			continue
		}
		for field, f := range ours[name].Fields() {
			want := bigEndian(f)
			found, inside := false, false
			for member, at := range vendor[s] {
				last := member[strings.LastIndex(member, ".")+1:]
				if last == field || last == cibOther[field] {
					found = true
					inside = inside || within(want, at) || within(at, want)
				}
			}
			switch {
			case inside:
				checked++
			case slices.Contains(cibWrong, field):
			case found:
				t.Errorf("%s.%s is %v here, and not in %s's", name, field, want, s)
			default:
				unknown++
			}
		}
	}
	t.Logf("%d fields lie where iPXE has them; of %d it has no such name", checked, unknown)
	if checked < 100 {
		t.Errorf("%d fields were compared: the header was not read well", checked)
	}
}

func within(a, b span) bool { return b.off <= a.off && a.off+a.width <= b.off+b.width }
