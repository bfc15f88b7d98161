package enasim

import (
	"strings"

	"github.com/rebound-nic/rebound/sim/kit"
)

// Layouts returns the layout of every admin command, as the names of the vendor's structures have it ("aq_create_sq_cmd", behind
// ena_admin_), for a comparison with those.
func Layouts() map[string]*kit.Layout {
	all := map[string]*kit.Layout{}
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
