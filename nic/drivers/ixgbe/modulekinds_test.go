package ixgbe

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func init() { i2cHalf = 0 }

// The bits of an SFP+ module's memory (SFF-8472 table 5-3) name its kinds.
func TestKindsOfModule(t *testing.T) {
	for want, bits := range map[string][3]byte{ // at sffCable, sff10G and sff1G
		"[unknown kind]": {0xF3, 0x0F, 0xF0}, "[passive copper cable active cable]": {0x0C, 0, 0},
		"[10GBASE-SR 10GBASE-LR 10GBASE-LRM 10GBASE-ER]":   {0, 0xF0, 0},
		"[1000BASE-SX 1000BASE-LX 1000BASE-CX 1000BASE-T]": {0, 0, 0x0F},
		"[active cable 10GBASE-LR 1000BASE-LX]":            {8, 0x20, 2},
	} {
		m := make(module, 64)
		m[sffCable], m[sff10G], m[sff1G] = bits[0], bits[1], bits[2]
		check.Equal(t, fmt.Sprint(m.kinds()), want, "%s")
	}
	check.Equal(t, fmt.Sprint(sff10G, sff1G, sffCable), "3 6 8", "at %s")
}
