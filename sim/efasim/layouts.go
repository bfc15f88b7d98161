package efasim

import (
	"strings"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Layouts returns the layout of every admin command that has fields, by the name of the vendor's structure without
// efa_admin_ ("create_qp_cmd"), for a comparison with those.
func Layouts() map[string]*parts.Layout {
	all := map[string]*parts.Layout{}
	for op, k := range kinds {
		switch {
		case len(k.Fields()) == 1: // only the head
		case op == opGetStats:
			all["aq_get_stats_cmd"] = k.Layout
		default:
			all[strings.ToLower(k.Name)+"_cmd"] = k.Layout
		}
	}
	return all
}
