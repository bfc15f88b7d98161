package bench

import (
	"strings"

	"github.com/rebound-nic/rebound/internal/bench/comparison"
	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
)

const compareHelp = "usage: rebound-bench compare [flags] A B [C ...]\n\n" + comparison.Help +
	`  rebound-bench compare out/before out/after
  rebound-bench compare -fail-if 'p99>+5%+200ns' out/before out/after      exit status 3 if p99 is slower, by more
                                                                   than both; 1 if that cannot be told

`

func compareCommand(e *command.Env, args []string) error {
	return comparison.Command(e, args, compareHelp, func(name string, o *foreign.Options) (*report.Report, []string,
		error) {
		if strings.HasPrefix(name, "prom:") {
			return nil, nil, process.Usagef("%s: rebound-bench does not query a Prometheus: use rebound-watch compare",
				name)
		}
		rep, err := foreign.Open(name, o)
		return rep, nil, err
	})
}
