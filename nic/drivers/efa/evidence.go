package efa

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// evidence requests what a probe file holds beside what Open needs: every feature that the device says it has. The
// answers are in the trace.
func (a *admin) evidence() {
	for id := uint8(1); id < 64; id++ {
		if a.has(id) && id != featHost { // that one can only be set
			c := feature{Header: amazonadmin.Header{Opcode: opGetFeature}, id: id}
			amazonadmin.Exec(a.aq, fmt.Sprintf("get feature %d", id), &c, &gotFeature{})
		}
	}
}
