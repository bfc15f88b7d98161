package watch

import (
	"cmp"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fleet/placement"
	"github.com/rebound-nic/rebound/fleet/targets"
)

// FewestProbers is the minimum number of fleet members that probe each member and each ordered pair of zones.
const FewestProbers = 3

// Labels of a fleet's targets.
const (
	nodeLabel = "node" // the member's name; without it the target's host
	zoneLabel = "zone"
	rackLabel = "rack"
)

// fleet chooses which of a fleet's targets this watch probes. One goroutine uses it at a time, except for now.
type fleet struct {
	k       int      // 0 for all targets
	names   []string // names under which this host may be listed
	log     *slog.Logger
	me      placement.Member // the last one found
	missing bool             // the message that this host is not listed was logged
	short   int              // was reported
	now     atomic.Pointer[fleetState]
}

// fleetState is the last choice, for the metrics.
type fleetState struct {
	me             placement.Member
	members, short int
}

// newFleet determines the names under which this host may be listed: self or, if it is empty, the host's name, its
// first part and its addresses.
func newFleet(k int, self string, log *slog.Logger) *fleet {
	f := &fleet{k: k, log: log}
	if f.k == 0 {
		return f
	}
	if self != "" {
		f.names = []string{self}
	} else {
		if name, err := os.Hostname(); err == nil {
			short, _, _ := strings.Cut(name, ".")
			f.names = append(f.names, name, short)
		}
		addrs, _ := net.InterfaceAddrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
				f.names = append(f.names, n.IP.String())
			}
		}
	}
	f.me.Name = slices.Concat(f.names, []string{"unknown"})[0]
	return f
}

// host returns this host's name in the fleet, or outside of one its host name.
func (f *fleet) host() string {
	if f.k > 0 && !f.missing {
		return f.me.Name
	}
	name, _ := os.Hostname()
	return cmp.Or(name, "unknown")
}

func member(t targets.Target) placement.Member {
	return placement.Member{Name: cmp.Or(t.Labels[nodeLabel], t.Host), Zone: t.Labels[zoneLabel],
		Rack: t.Labels[rackLabel]}
}

// pick returns the targets that this watch probes: those of its peers.
func (f *fleet) pick(all []targets.Target) []targets.Target {
	if f.k == 0 {
		return all
	}
	members := map[string]placement.Member{}
	best := len(f.names)
	for _, t := range all {
		m := member(t)
		if _, ok := members[m.Name]; !ok {
			members[m.Name] = m
		}
		for _, name := range []string{m.Name, t.Host} {
			if i := slices.Index(f.names, name); i >= 0 && i < best {
				best, f.me = i, members[m.Name]
			}
		}
	}
	if missing := best == len(f.names); missing != f.missing {
		if f.missing = missing; missing {
			f.log.Warn("no target is this host: it probes its peers, but no peer probes it", "node", f.me.Name, "zone",
				f.me.Zone,
				"listed_as", strings.Join(f.names, " "), "hint",
				"-self NAME is its label node, or the host of its target")
		} else {
			f.log.Info("this host is a member of the fleet", "node", f.me.Name, "zone", f.me.Zone, "rack", f.me.Rack)
		}
	}
	members[f.me.Name] = f.me
	list := make([]placement.Member, 0, len(members))
	for _, m := range members {
		list = append(list, m)
	}
	chosen := placement.New(list, f.k, FewestProbers)
	wanted := map[string]bool{}
	for _, name := range chosen.Peers(f.me.Name) {
		wanted[name] = true
	}
	if chosen.Short != f.short && chosen.Short > 0 {
		f.log.Warn("there are too many zones for this many peers: some ordered pairs of zones have fewer probers than others", "left_out", chosen.Short,
			"peers", f.k, "hint", "raise -peers, or see whether the label zone names zones")
	}
	f.short = chosen.Short
	f.now.Store(&fleetState{f.me, len(list), chosen.Short})
	var out []targets.Target
	for _, t := range all {
		if wanted[member(t).Name] {
			out = append(out, t)
		}
	}
	return out
}
