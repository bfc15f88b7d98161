package main

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/sim"
)

// Every profile of every model is there under its name, and comes up as a port.
func TestProfiles(t *testing.T) {
	seen := 0
	for _, m := range models {
		for i, p := range m.profiles {
			made, err := newModel(m.name, p.name, 0)
			if err != nil {
				t.Fatal(err)
			}
			port, err := sim.New(made, sim.Options{Name: p.name})
			if err != nil {
				t.Fatalf("%s %s: %v", m.name, p.name, err)
			}
			port.Close()
			if none, err := newModel(m.name, "", 0); err != nil || i == 0 && none.Config().Device != made.Config().Device {
				t.Errorf("%s without a profile is not %s: %v", m.name, p.name, err)
			}
			seen++
		}
	}
	if seen < 35 {
		t.Errorf("%d profiles", seen)
	}
	for args, want := range map[string]string{
		"mlx5 cx9": `model mlx5 has no profile "cx9" (cx4, cx4vf,`,
		"mlx6 cx4": `no such model: "mlx6" (toy, ixgbe,`,
		"toy llq":  `model toy has no profile "llq" (toy)`,
	} {
		name, profile, _ := strings.Cut(args, " ")
		if _, err := newModel(name, profile, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %s", args, err, want)
		}
	}
	c := config{models: many{"mlx5", "mlx5"}, sockets: many{"a", "b"}, wires: many{"pair"}, profiles: many{"cx5"}}
	if err := c.check(nil); err == nil || !strings.Contains(err.Error(), "2 models and 1 profiles") {
		t.Errorf("one profile for two models gives %v", err)
	}
}

// A wire joins two ports of one link layer, and a tap has Ethernet.
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
