package simserve

import (
	"strings"
	"testing"
)

func TestLinkLayers(t *testing.T) {
	for _, c := range []struct {
		profiles, wires many
		want            string
	}{
		{many{"cx3-ib", "cx3pro-ib"}, many{"pair"}, ""},
		{many{"cx3", "cx3pro"}, many{"pair"}, ""},
		{many{"cx3-ib", "cx3"}, many{"pair"}, "cx3-ib has an InfiniBand port, cx3 an Ethernet one"},
		{many{"cx3-ib"}, many{"tap:x"}, "carries Ethernet, the port is of InfiniBand"},
		{many{"cx9"}, many{"tap:x"}, `no profile "cx9" (cx3, cx3pro, cx3-ib, cx3pro-ib)`},
	} {
		k := config{profiles: c.profiles, wires: c.wires}
		for range c.profiles {
			k.models, k.sockets = append(k.models, "mlx4"), append(k.sockets, "s")
		}
		if err := k.check(nil); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v on %v gives %v, expected %q", c.profiles, c.wires, err, c.want)
		}
	}
}
