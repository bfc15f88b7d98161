package watch

import (
	"flag"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/placement"
	"github.com/rebound-nic/rebound/fleet/targets"
)

var (
	fleetFiles = flag.String("fleet", "",
		"files in the format of file_sd, separated by commas, for TestFleetFiles: a fleet, and as it is later")
	fleetPeers = flag.Int("fleet-peers", 20, "peers for TestFleetFiles")
)

// What the watches of a real fleet would probe, by the list that discovery wrote: every host has as many peers as it
// should have, enough hosts probe it and each ordered pair of zones, and little changes from one file to the next.
func TestFleetFiles(t *testing.T) {
	if *fleetFiles == "" {
		t.Skip("needs -fleet FILE, as cluster's TestThousand gives it")
	}
	var before map[[2]string]bool
	var hosts map[string]placement.Member
	for _, file := range strings.Split(*fleetFiles, ",") {
		sources := targets.Sources{Defaults: targets.Defaults{Probes: targets.Probes{Interval: time.Second}},
			FileSD: []string{file}}
		all, failures := sources.Read(t.Context(), true, time.Now())
		if len(failures) > 0 || len(all) < 2 {
			t.Fatalf("%s: %d targets, %v", file, len(all), failures)
		}
		members := map[string]placement.Member{}
		zones := map[string]int{}
		for _, x := range all {
			m := member(x)
			members[m.Name] = m
			zones[m.Zone]++
		}
		begin := time.Now()
		pairs, probers := map[[2]string]bool{}, map[string]int{}
		links := map[[2]string]map[string]bool{}
		exact, most := 0, 0
		for _, m := range members {
			f := newFleet(*fleetPeers, m.Name, slog.New(slog.DiscardHandler))
			chosen := f.pick(all)
			if s := f.now.Load(); f.missing || s.me != m || s.short > 0 || s.members != len(members) {
				t.Errorf("%s: %s is %+v", file, m.Name, s)
			}
			if len(chosen) < min(*fleetPeers, len(members)-1) || len(chosen) > 2**fleetPeers {
				t.Errorf("%s: %s has %d peers", file, m.Name, len(chosen))
			}
			if len(chosen) == *fleetPeers {
				exact++
			}
			most = max(most, len(chosen))
			for _, x := range chosen {
				to := member(x)
				pairs[[2]string{m.Name, to.Name}] = true
				probers[to.Name]++
				link := [2]string{m.Zone, to.Zone}
				if links[link] == nil {
					links[link] = map[string]bool{}
				}
				links[link][m.Name] = true
			}
		}
		took := time.Since(begin) / time.Duration(len(members))
		fewest, largest := len(members), 0
		for name := range members {
			fewest, largest = min(fewest, probers[name]), max(largest, probers[name])
		}
		if fewest < FewestProbers {
			t.Errorf("%s: a host is probed by %d others", file, fewest)
		}
		fewestOfLink := len(members)
		for a, n := range zones {
			for b := range zones {
				if a == b && n == 1 {
					continue
				}
				if got := len(links[[2]string{a, b}]); got < min(FewestProbers, n) {
					t.Errorf("%s: %d hosts of zone %s probe zone %s", file, got, a, b)
				} else {
					fewestOfLink = min(fewestOfLink, got)
				}
			}
		}
		t.Logf("%s: %d hosts in %d zones; %d have exactly %d peers, the others up to %d; a host is probed by %d to %d, an ordered pair of zones by %d hosts or more; a choice takes %v",
			file, len(members), len(zones), exact, *fleetPeers, most, fewest, largest, fewestOfLink,
			took.Round(time.Microsecond))
		if before != nil {
			moved, changed := differing(before, pairs), differing(hosts, members)
			t.Logf("%s: %d hosts joined or left, %d pairs of prober and peer changed: %.0f each", file, changed, moved,
				float64(moved)/float64(max(changed, 1)))
			if moved > max(changed, 1)*(6**fleetPeers) {
				t.Errorf("%d hosts joined or left, and %d pairs changed", changed, moved)
			}
		}
		before, hosts = pairs, members
	}
}

// differing counts the keys that only one of two maps has.
func differing[K comparable, V any](a, b map[K]V) (n int) {
	for k := range a {
		if _, both := b[k]; !both {
			n++
		}
	}
	for k := range b {
		if _, both := a[k]; !both {
			n++
		}
	}
	return n
}
