package efa

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// evidence queries what a probe file contains beyond what Open needs: every feature that the device reports. The trace
// records the answers.
func (a *admin) evidence() {
	for id := uint8(1); id < 64; id++ {
		if a.has(id) && id != featHost { // this feature can only be set
			c := feature{Header: amazonadmin.Header{Opcode: opGetFeature}, id: id}
			amazonadmin.Exec(a.aq, fmt.Sprintf("get feature %d", id), &c, &gotFeature{})
		}
	}
}
