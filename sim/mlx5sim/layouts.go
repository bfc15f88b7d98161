package mlx5sim

import (
	"strings"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Layouts returns the layout of every command's input ("create_cq_in") and output, and of every access register
// ("ptys_reg"), with the names in the manual and its published headers, for comparison with those.
func Layouts() map[string]*parts.Layout {
	all := map[string]*parts.Layout{}
	for _, k := range commandTable() {
		name := strings.ToLower(k.name)
		all[name+"_in"], all[name+"_out"] = k.in, k.out
	}
	for _, r := range registers {
		all[strings.ToLower(r.name)+"_reg"] = r.Layout
	}
	return all
}
