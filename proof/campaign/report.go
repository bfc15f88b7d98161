package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// step is an injected fault and its result.
type step struct {
	kind, fault string
	took        time.Duration // from the end of the fault to the first reply
	silent      time.Duration // the longest time without a reply around the fault
	counts      counts
	restarted   bool   // the process was started again
	helped      bool   // the restart needed an operator
	skipped     string // why it was not injected
}

type failure struct {
	part              int
	kind, fault, what string
}

type report struct {
	steps    []step
	failures []failure
	counts   counts
	ends     map[string]int // exits of responders

	starts, objects                        int
	scrapes, scrapesRefused, scrapesFailed uint64
	transactions, interrupts, violations   uint64
}

func (r *report) init() { r.ends = map[string]int{} }

// save writes campaign.md, and a summary to the terminal.
func (c *campaign) save() error {
	r := &c.report
	path := filepath.Join(c.out, "campaign.md")
	var text bytes.Buffer
	c.write(&text)
	failed := errors.Join(atomicfile.WriteFile(path, text.Bytes()), c.steps.Err(), c.models.Err())
	fmt.Fprintf(c.w, "campaign: %d faults in %d parts, %v: %d requests, %d answered, %d lost; %d failures; %s\n",
		len(r.steps), c.parts,
		c.finish.Sub(c.start).Round(time.Second), r.counts.Sent, r.counts.Answered+r.counts.Late, r.counts.Lost,
		len(r.failures), path)
	return failed
}

func (c *campaign) write(w io.Writer) {
	r := &c.report
	stamp, _ := process.BuildStamp()
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(w, "# A campaign of faults\n\n`bin/prove campaign -seed %d -duration %v`, version %s, %s, %d CPUs, kernel %s, load at the end %s\n\n", c.seed, c.duration, stamp,
		c.start.UTC().Format("2006-01-02 15:04 UTC"), runtime.NumCPU(), kernelRelease(),
		strings.Join(strings.Fields(string(load))[:3], " "))
	fmt.Fprintf(w, "%d faults in %d parts within %v. %d failures.\n\n", len(r.steps), c.parts,
		c.finish.Sub(c.start).Round(time.Second), len(r.failures))
	for _, f := range r.failures {
		fmt.Fprintf(w, "- **FAILED** part %d, %s, %s: %s\n", f.part, f.kind, f.fault, f.what)
	}
	n := &r.counts
	fmt.Fprintf(w, `
| What | How many |
|---|---:|
| requests sent | %d |
| answered in time | %d |
| answered later than %v | %d |
| lost, most of them while nothing could answer | %d |
| answered twice | %d |
| wrong replies | %d |
| frames or messages through the responders | %d |
| PCIe transactions that the models counted | %d |
| interrupts that they raised (our drivers poll, and mask them) | %d |
| violations that they noted, of faults' doing or not | %d |
| starts of the responder | %d |
| BPF programs, maps and links that it had, all gone after its end | %d |
| scrapes answered, refused as too many, failed | %d, %d, %d |
`, n.Sent, n.Answered, lostTime, n.Late, n.Lost, n.Twice, n.Wrong, 2*(n.Answered+n.Late), r.transactions, r.interrupts, r.violations, r.starts, r.objects,
		r.scrapes, r.scrapesRefused, r.scrapesFailed)
	var ends []string
	for how, n := range r.ends {
		ends = append(ends, fmt.Sprintf("%s (%d)", how, n))
	}
	slices.Sort(ends)
	fmt.Fprintf(w, "\nResponders ended with: %s.\n\nAfter each part there was looked for: DMA mappings and bus mastering of the model, sockets, the XDP program on the interface, BPF objects, pins, "+
		"interfaces, and of the campaign's process %s at the start of the second part and no more later. The machine's free huge pages: %s before, %s after.\n",
		strings.Join(ends, ", "), c.before, c.before.hugeFree, holding().hugeFree)
	fmt.Fprint(w, "\n*Back* is the time from the fault's end to the first answer, *silent* the longest time without one, the fault's own length included; both in ms. "+
		"*Restarted*: the process ended or was killed, and was started again. *By hand*: nothing was answered for 10 s until it was restarted, which a fault that "+
		"makes the device lie may bring about.\n\n| On | Fault | Times | Restarted | By hand | Back, median | most | Silent, median | most | Asked | Lost |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	type key struct{ kind, fault string }
	all := map[key][]step{}
	var keys []key
	for _, s := range r.steps {
		k := key{s.kind, s.fault}
		if all[k] == nil {
			keys = append(keys, k)
		}
		all[k] = append(all[k], s)
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.kind+"\x00"+a.fault, b.kind+"\x00"+b.fault) })
	var skipped []string
	for _, k := range keys {
		var took, silent []time.Duration
		var sum counts
		anew, helped := 0, 0
		for _, s := range all[k] {
			if s.skipped != "" {
				skipped = append(skipped, k.fault+": "+s.skipped)
				continue
			}
			took, silent = append(took, s.took), append(silent, s.silent)
			sum.add(s.counts)
			if s.restarted {
				anew++
			}
			if s.helped {
				helped++
			}
		}
		if len(took) == 0 {
			continue
		}
		slices.Sort(took)
		slices.Sort(silent)
		ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }
		fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %s | %s | %s | %s | %d | %d |\n", k.kind, k.fault, len(took), anew,
			helped, ms(took[len(took)/2]), ms(took[len(took)-1]),
			ms(silent[len(silent)/2]), ms(silent[len(silent)-1]), sum.Sent, sum.Lost)
	}
	slices.Sort(skipped)
	for _, s := range slices.Compact(skipped) {
		fmt.Fprintf(w, "\nNot done on this machine: %s.\n", s)
	}
}

func kernelRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
