package responder

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// pinStatus is a pin in the output of `rebound-responder status -json`, one object per line.
type pinStatus struct {
	xdp.About
	Attached bool              `json:"attached"` // the interface exists, and the program is attached to it
	Running  bool              `json:"running"`  // the responder that joined it last runs
	Answered uint64            `json:"answered"`
	Refused  uint64            `json:"refused"`
	Verdicts map[string]uint64 `json:"verdicts"`
	// of a random reply in sixteen, from the program's start to its end
	Turnaround *quantiled `json:"turnaround_ns,omitempty"`
}

type quantiled struct {
	Count uint64 `json:"count"`
	P50   uint64 `json:"p50"`
	P99   uint64 `json:"p99"`
	P999  uint64 `json:"p99.9"`
	Max   uint64 `json:"max"`
}

func statusFlags(asJSON *bool) *flag.FlagSet {
	f := flag.NewFlagSet("status", flag.ContinueOnError)
	f.BoolVar(asJSON, "json", false, "print one JSON object per line")
	return f
}

// statusCommand shows all pins, or the named one.
func statusCommand(args []string, stdout, _ io.Writer) error {
	var asJSON bool
	f := statusFlags(&asJSON)
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	switch {
	case len(names) > 1:
		return usageError("status needs the name of one pin, or none for all")
	case len(names) == 1:
		if err := xdp.CheckPin(names[0]); err != nil {
			return usageError(err.Error())
		}
	default:
		var err error
		if names, err = xdp.Pins(); err != nil {
			return err
		}
	}
	if len(names) == 0 && !asJSON {
		fmt.Fprintln(stdout, "nothing is pinned")
	}
	var failed error
	for _, name := range names {
		p, err := xdp.OpenPinned(name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if asJSON {
			b, err := json.Marshal(statusOf(p))
			if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "%s\n", b)
		} else {
			printPin(stdout, p)
		}
		p.Close()
	}
	return failed
}

func statusOf(p *xdp.Pinned) pinStatus {
	counts := p.Verdicts()
	s := pinStatus{About: p.About, Attached: p.Attached, Running: runs(p.About.PID), Answered: counts.Answered(),
		Refused:  counts.Refused(),
		Verdicts: map[string]uint64{}}
	if !s.Running { // the card's clock is not synchronised with the kernel's
		s.T2 = "program"
	}
	for i, n := range counts {
		if n > 0 {
			s.Verdicts[fastpath.Verdict(i).String()] = n
		}
	}
	if t := ticksOf(p.Turnaround()); t.n > 0 {
		s.Turnaround = &quantiled{t.n, t.quantile(0.5), t.quantile(0.99), t.quantile(0.999), t.greatest}
	}
	return s
}

func printPin(out io.Writer, p *xdp.Pinned) {
	a := p.About
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	state := "answers without a process"
	switch {
	case !p.Attached:
		state = "does not answer: its interface was removed. The counts are kept for a new one of that name"
	case runs(a.PID):
		state = fmt.Sprintf("answers; process %d runs", a.PID)
	}
	fmt.Fprintf(w, "pin\t%s\t%s\n", sanitize.Text(a.Pin), state)
	fmt.Fprintf(w, "device\t%s\t%s, mac %s, network namespace %d\n", sanitize.Text(a.Device), sanitize.Text(a.Hook),
		sanitize.Text(a.MAC), a.Namespace)
	fmt.Fprintf(w, "addresses\t%s\t%s\n", sanitize.Text(strings.Join(a.Addresses, ",")), sanitize.Text(a.Mode))
	fmt.Fprintf(w, "since\t%s\tjoined %s\n", a.Since.Format(time.DateTime), a.Updated.Format(time.DateTime))
	counts := p.Verdicts()
	printCounts(w, &counts)
	fmt.Fprintln(w, explainProgram)
	page.PrintTimings(w, programTimings(p.Turnaround(), xdp.Histogram{}))
}

// runs reports whether pid is a running responder, as far as visible here: the PID may belong to another namespace.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	name := strings.TrimPrefix(string(b), "rebound-")       // as installed
	return err == nil && strings.HasPrefix(name, "respond") // the kernel keeps 15 bytes of the name
}

// unpinCommand ends a pin.
func unpinCommand(args []string, _, _ io.Writer) error {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		return flag.ErrHelp
	}
	if len(args) != 1 {
		return usageError("unpin needs the name of one pin (rebound-responder status lists them)")
	}
	if err := xdp.CheckPin(args[0]); err != nil || args[0] == "" {
		return usageError(fmt.Sprintf("%q cannot name a pin", args[0]))
	}
	return xdp.Unpin(args[0])
}
