package main

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// profile is one adapter that a model can be.
type profile struct {
	name, what string
	make       func(mac [6]byte) sim.Model
	link       sim.LinkType // of its wire; Ethernet if zero
}

func toy(mac [6]byte) sim.Model { return toysim.New(mac) }

func ixgbe(name, what string, o ixgbesim.Options) profile {
	return profile{name: name, what: what, make: func(mac [6]byte) sim.Model { o.MAC = mac; return ixgbesim.New(o) }}
}

func ena(name, what string, o enasim.Options) profile {
	return profile{name: name, what: what, make: func(mac [6]byte) sim.Model { o.MAC = mac; return enasim.New(o) }}
}

func mlx4(name, what string, o mlx4sim.Options) profile {
	p := profile{name: name, what: what, make: func(mac [6]byte) sim.Model { o.MAC = mac; return mlx4sim.New(o) }}
	if o.Link == mlx4sim.InfiniBand {
		p.link = sim.LinkInfiniBand
	}
	return p
}

// mlx5Names are in the order of the model's own profiles.
var mlx5Names = strings.Fields("cx4 cx4vf cx4lx cx4lxvf cx5 cx5vf cx5ex cx5exvf cx6 cx6vf cx6dx vf cx6lx cx7 bf bfvf bf2 bf3")

// models are what -model names, and for each what -profile does; its first profile is what it is without one.
var models = []struct {
	name     string
	profiles []profile
}{
	{"toy", []profile{{name: "toy", what: "a device of ours, without a datasheet", make: toy}}},
	{"ixgbe", []profile{
		ixgbe("82599", "8086:10fb, SFP+", ixgbesim.Options{}),
		ixgbe("82599-dual", "one of two functions, BAR 0 of 4 MB, prefetchable", ixgbesim.Options{Dual: true, BAR0: 4 << 20, Pref: true}),
		ixgbe("82599-lom", "shared with a management controller: CFG_DONE never sets; BAR 0 of 128 KB", ixgbesim.Options{SharedLOM: true, BAR0: 128 << 10}),
		ixgbe("82599-kx4", "8086:10f7, backplane", ixgbesim.Options{Kind: ixgbesim.KX4}),
		ixgbe("82599-combined", "8086:10f8, backplane", ixgbesim.Options{Kind: ixgbesim.Combined}),
		ixgbe("82599-xaui", "8086:10fc", ixgbesim.Options{Kind: ixgbesim.XAUI}),
		ixgbe("x540", "8086:1528, 10GBASE-T", ixgbesim.Options{Kind: ixgbesim.X540}),
	}},
	{"ena", []profile{
		ena("llq", "1d0f:ec20, LLQ entries of 128 and 256 bytes", enasim.Options{}),
		ena("llq-wide", "LLQ entries of 256 bytes are recommended", enasim.Options{PreferWide: true}),
		ena("no-llq", "1d0f:0ec2, neither LLQ nor its BAR", enasim.Options{Device: 0x0ec2, NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true}),
		ena("msix-bar1", "BAR 0 and 1 of 8 KB, MSI-X in BAR 1, as Graviton hosts have it", enasim.Options{MSIXBAR: 1}),
		ena("msix-bar4", "MSI-X in BAR 4 of 64 KB", enasim.Options{MSIXBAR: 4}),
		ena("no-rx-checks", "no receive checksums, no hash", enasim.Options{NoRxChecks: true}),
	}},
	{"mlx5", mlx5Profiles()},
	{"mlx4", []profile{
		mlx4("cx3", "15b3:1003, an Ethernet port", mlx4sim.Options{}),
		mlx4("cx3pro", "15b3:1007, an Ethernet port", mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro}),
		mlx4("cx3-ib", "15b3:1003, an InfiniBand port: its far end is another, and a driver's host runs a subnet manager", mlx4sim.Options{Link: mlx4sim.InfiniBand}),
		mlx4("cx3pro-ib", "15b3:1007, an InfiniBand port", mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro, Link: mlx4sim.InfiniBand}),
	}},
	{"mlx4pro", []profile{mlx4("cx3pro", "15b3:1007", mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro})}},
	{"efa", efaProfiles()},
}

func mlx5Profiles() (all []profile) {
	for i, p := range mlx5sim.Profiles() {
		what := fmt.Sprintf("15b3:%04x", p.Device())
		if p.Virtual() {
			what += ", a virtual function"
		}
		all = append(all, profile{name: mlx5Names[i], what: what, make: func(mac [6]byte) sim.Model {
			return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: p})
		}})
	}
	return all
}

// efaProfiles has the model's default, efa1, first.
func efaProfiles() []profile {
	var first, rest []profile
	for _, p := range efasim.Profiles() {
		made := profile{name: p.Name, what: fmt.Sprintf("1d0f:%04x", p.Device), make: func(mac [6]byte) sim.Model {
			return efasim.New(efasim.Options{MAC: mac, Profile: p})
		}}
		if p.Name == efasim.EFA1.Name {
			first = append(first, made)
		} else {
			rest = append(rest, made)
		}
	}
	return append(first, rest...)
}

// findProfile returns what a model and a profile name. An empty profile is the model's first. A profile of EFA's is a model's name
// too.
func findProfile(name, wanted string) (p profile, err error) {
	if len(name) == len("efa0") && strings.HasPrefix(name, "efa") && wanted == "" {
		name, wanted = "efa", name
	}
	var names []string
	for _, m := range models {
		if m.name != name {
			names = append(names, m.name)
			continue
		}
		var known []string
		for _, p := range m.profiles {
			if wanted == "" || p.name == wanted {
				return p, nil
			}
			known = append(known, p.name)
		}
		return p, fmt.Errorf("model %s has no profile %q (%s)", name, wanted, strings.Join(known, ", "))
	}
	return p, fmt.Errorf("no such model: %q (%s, efa0 to efa3)", name, strings.Join(names, ", "))
}

// newModel returns the n-th device of this process, with a MAC address of its own.
func newModel(name, wanted string, n int) (sim.Model, error) {
	p, err := findProfile(name, wanted)
	if err != nil {
		return nil, err
	}
	return p.make([6]byte{0x02, 0x52, 0x62, 0x4e, 0x49, byte(n + 1)}), nil
}

// profileHelp lists all for -h.
func profileHelp() string {
	var b strings.Builder
	b.WriteString("`name` of the adapter that a model is; once for each model, in the same order, or not at all: the first of")
	for _, m := range models {
		if len(m.profiles) > 1 {
			fmt.Fprintf(&b, "\n%s:", m.name)
			for _, p := range m.profiles {
				fmt.Fprintf(&b, "\n    %-15s %s", p.name, p.what)
			}
		}
	}
	return b.String()
}
