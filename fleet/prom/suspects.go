package prom

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/fleet/suspects"
	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/answer"
)

// Metrics of a fleet's watches.
const (
	upMetric   = "rebound_target_up"
	selfMetric = "rebound_fleet_self_info"
)

// Fleet returns the paths that watches report at a time, and the silent hosts: those whose watch was scraped within the
// hour before and not within the last two minutes, although others probe them. labels are required of all series. A
// watch without -peers does not say which host it is on: its instance is then its name.
//
// A path's loss is that of the last minute or of the minute before, whichever lost less, so that a burst or an outage
// that is over does not look like a partial fault. It is known if there are two scrapes a minute.
func (s *Server) Fleet(ctx context.Context, labels []Label, at time.Time) (paths []suspects.Path,
	silent []suspects.Member, err error) {
	selector := (&Source{Labels: labels}).selector
	up, err := s.instant(ctx, selector(upMetric), at)
	if err == nil && len(up) == 0 {
		err = fmt.Errorf("%w: no %s, which rebound-watch has for each target", answer.ErrNothing, selector(upMetric))
	}
	if err != nil {
		return nil, nil, err
	}
	// one failed scrape makes no host silent
	self, err := s.instant(ctx, "last_over_time("+selector(selfMetric)+"[2m])", at)
	if err != nil {
		return nil, nil, err
	}
	before, err := s.instant(ctx, "last_over_time("+selector(selfMetric)+"[1h])", at)
	if err != nil {
		return nil, nil, err
	}
	sent, err := s.perPath(ctx, selector("rebound_probes_total"), "", at)
	if err != nil {
		return nil, nil, err
	}
	var shares [2]map[[3]string]float64
	for i, offset := range []string{"", " offset 1m"} {
		if shares[i], err = s.perPath(ctx, selector(lostMetric), offset, at, selector(uncertainMetric),
			selector("rebound_probes_total")); err != nil {
			return nil, nil, err
		}
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
		key := pathKey(x.Metric)
		paths = append(paths, suspects.Path{From: from, To: to, Failing: x.Values[0].V == 0, Sent: sent[key],
			Lost: sent[key] * min(shares[0][key], shares[1][key])})
	}
	for _, x := range before {
		if name := x.Metric["node"]; !reports[name] && probed[name] {
			reports[name] = true
			silent = append(silent, suspects.Member{Name: name, Zone: x.Metric["zone"]})
		}
	}
	return paths, silent, nil
}

func pathKey(m map[string]string) [3]string { return [3]string{m["job"], m["instance"], m["target"]} }

// perPath returns the increase of a counter of each path in a minute. With two more counters it returns the increase of
// the first two as a share of the third's, if that is not zero.
func (s *Server) perPath(ctx context.Context, counter, offset string, at time.Time,
	more ...string) (map[[3]string]float64, error) {
	grown := func(selector string) string {
		return "sum by (job, instance, target) (increase(" + selector + "[1m]" + offset + "))"
	}
	query := grown(counter)
	if len(more) > 0 {
		query = "(" + query + " + " + grown(more[0]) + ") / " + grown(more[1]) + " > 0"
	}
	all, err := s.instant(ctx, query, at)
	out := map[[3]string]float64{}
	for _, x := range all {
		if len(x.Values) == 1 && x.Values[0].V >= 0 {
			out[pathKey(x.Metric)] = x.Values[0].V
		}
	}
	return out, err
}

// host returns the host of a target's name.
func host(target string) string {
	t, err := targets.Defaults{}.Parse(target)
	if err != nil {
		return target
	}
	return t.Host
}
