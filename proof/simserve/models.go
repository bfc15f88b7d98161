package simserve

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/sim"
)

// newModel returns the n-th device of this process, with its own MAC address.
func newModel(name, wanted string, n int) (sim.Model, error) {
	p, err := catalogue.FindProfile(name, wanted)
	if err != nil {
		return nil, err
	}
	return p.New([6]byte{0x02, 0x52, 0x62, 0x4e, 0x49, byte(n + 1)}), nil
}

// profileHelp lists all profiles for -h.
func profileHelp() string {
	var b strings.Builder
	b.WriteString("`name` of the kind of card; once for each model, in the same order, or not at all: the first of")
	for i := range catalogue.All {
		if c := &catalogue.All[i]; len(c.Profiles) > 1 {
			fmt.Fprintf(&b, "\n%s:", c.Name)
			for _, p := range c.Profiles {
				fmt.Fprintf(&b, "\n    %-15s %s", p.Name, p.Doc)
			}
		}
	}
	return b.String()
}
