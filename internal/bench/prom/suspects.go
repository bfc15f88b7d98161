package prom

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/suspects"
	"github.com/rebound-nic/rebound/internal/bench/targets"
)

// Metrics of a fleet's watches.
const (
	upMetric   = "rebound_target_up"
	selfMetric = "rebound_fleet_self_info"
)

// Fleet returns the paths that watches report at a time, and the silent hosts: those whose watch was scraped within the hour
// before and not within the last two minutes, although others probe them. labels are required of all series. A watch without -peers
// does not say which host it is on: its instance is then its name.
func (s *Server) Fleet(ctx context.Context, labels []Label, at time.Time) (paths []suspects.Path, silent []suspects.Member, err error) {
	selector := (&Source{Labels: labels}).selector
	up, err := s.instant(ctx, selector(upMetric), at)
	if err == nil && len(up) == 0 {
		err = fmt.Errorf("%w: no %s, which rebound-bench watch has for each target", errNothing, selector(upMetric))
	}
	if err != nil {
		return nil, nil, err
	}
	self, err := s.instant(ctx, "last_over_time("+selector(selfMetric)+"[2m])", at) // one failed scrape makes no host silent
	if err != nil {
		return nil, nil, err
	}
	before, err := s.instant(ctx, "last_over_time("+selector(selfMetric)+"[1h])", at)
	if err != nil {
		return nil, nil, err
	}
	type watch struct{ job, instance string }
	of := func(m map[string]string) watch { return watch{m["job"], m["instance"]} }
	probers, reports := map[watch]suspects.Member{}, map[string]bool{}
	for _, x := range self {
		probers[of(x.Metric)] = suspects.Member{Name: x.Metric["node"], Zone: x.Metric["zone"]}
		reports[x.Metric["node"]] = true
	}
	probed := map[string]bool{}
	for _, x := range up {
		if len(x.Values) != 1 {
			continue
		}
		from, ok := probers[of(x.Metric)]
		if !ok {
			from.Name = x.Metric["instance"]
		}
		to := suspects.Member{Name: cmp.Or(x.Metric["node"], host(x.Metric["target"])), Zone: x.Metric["zone"]}
		probed[to.Name] = true
		paths = append(paths, suspects.Path{From: from, To: to, Failing: x.Values[0].V == 0})
	}
	for _, x := range before {
		if name := x.Metric["node"]; !reports[name] && probed[name] {
			reports[name] = true
			silent = append(silent, suspects.Member{Name: name, Zone: x.Metric["zone"]})
		}
	}
	return paths, silent, nil
}

// host returns the host of a target's name.
func host(target string) string {
	t, err := targets.Defaults{}.Parse(target)
	if err != nil {
		return target
	}
	return t.Host
}
