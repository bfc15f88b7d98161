package fleet

import (
	"context"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/fleet/prom"
	"github.com/rebound-nic/rebound/internal/bench/comparison"
	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
)

const compareHelp = "usage: rebound-watch compare [flags] A B [C ...]\n\n" + comparison.Help +
	`In the place of a folder may be prom:URL?target=TARGET&from=TIME&to=TIME: the native histograms that a Prometheus keeps of a watch.
TIME is RFC 3339, seconds since 1970, now, or now-2h. &windows=N cuts it into N runs (default 12); any other &LABEL=VALUE chooses among
several series of the target.

  rebound-watch compare 'prom:http://127.0.0.1:9090?target=icmp:10.0.0.2&from=now-25h&to=now-24h' \
                'prom:http://127.0.0.1:9090?target=icmp:10.0.0.2&from=now-1h&to=now'

`

func compareCommand(e *command.Env, args []string) error {
	return comparison.Command(e, args, compareHelp, func(name string, o *foreign.Options) (*report.Report, []string,
		error) {
		if strings.HasPrefix(name, prom.Prefix) {
			return fromProm(name)
		}
		rep, err := foreign.Open(name, o)
		return rep, nil, err
	})
}

// fromProm loads a report from a Prometheus, with remarks about it.
func fromProm(text string) (*report.Report, []string, error) {
	s, err := prom.Parse(text, time.Now())
	if err != nil {
		return nil, nil, process.Usagef("%w", err)
	}
	rep, err := prom.Load(context.Background(), &prom.Server{Base: s.Base}, s)
	if err != nil {
		return nil, nil, err
	}
	remarks := prom.Advice(s, rep.Resolution)
	for _, n := range rep.Notes {
		remarks = append(remarks, s.Name()+": "+n)
	}
	return rep, remarks, nil
}
