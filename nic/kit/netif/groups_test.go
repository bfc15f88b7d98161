package netif

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
)

func TestGroups(t *testing.T) {
	prefix := netip.MustParsePrefix
	group := [6]byte{0x33, 0x33, 0xff, 0x12, 0x34, 0x56}
	for _, c := range []struct {
		name   string
		o      nic.Options
		groups [][6]byte
		all    bool
	}{
		{"nothing known", nic.Options{}, nil, true},
		{"IPv4 alone", nic.Options{Match: &fastpath.Config{Addresses: []netip.Prefix{prefix("10.0.0.2/24")}}}, nil, false},
		{"both families", nic.Options{Match: &fastpath.Config{Addresses: []netip.Prefix{prefix("10.0.0.2/24"), prefix("fd00::12:3456/64")}}},
			[][6]byte{group}, false},
		{"a bench", nic.Options{Steer: &nic.Steer{Local: netip.MustParseAddr("fd00::ab12:3456")}}, [][6]byte{group}, false},
	} {
		if groups, all := Groups(c.o); !slices.Equal(groups, c.groups) || all != c.all {
			t.Errorf("%s: %x, all %v; want %x, %v", c.name, groups, all, c.groups, c.all)
		}
	}
}
