package enasim

import (
	"strings"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Layouts returns the layout of every admin command, by the name of the vendor's structure without ena_admin_
// ("aq_create_sq_cmd"), for a comparison with those.
func Layouts() map[string]*parts.Layout {
	all := map[string]*parts.Layout{}
	for op, k := range commands {
		name := "aq_" + strings.ToLower(k.Name) + "_cmd"
		switch op {
		case opGetFeature, opSetFeature:
			name = strings.ToLower(strings.ReplaceAll(k.Name, "FEATURE", "FEAT")) + "_cmd"
		case opGetStats:
			name = "aq_get_stats_cmd"
		}
		all[name] = k.Layout
	}
	return all
}
