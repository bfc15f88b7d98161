package bench

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const versusShortHelp = `usage: rebound-bench versus A B [flags]

Says which of two targets (NICs, instances, zones) is better: which, by how much, whether that is sure, and whether it is more than the
spread between runs. It measures both with ICMP and with UDP in short alternating slices, and writes one page, whose first sentence is the answer.
UDP needs something that echoes on -port (default 7) on both, such as rebound-responder; without, it compares with ICMP only.

Examples:
  rebound-bench versus 10.0.0.2 10.0.0.3
  rebound-bench versus 10.0.0.2 10.0.0.3 -rate 10k -size 256 -duration 60s
  rebound-bench versus 10.0.0.2 10.0.0.3 -proto icmp

  -proto icmp              with this protocol only
  -port 7                  UDP port
  -size 64                 bytes of the Ethernet frame, without FCS
  -rate 10k                probes per second (default: the next probe leaves when the last is answered)
  -duration 10s            time to measure each target with each protocol (default 10s)
  -out out/versus          folder for the page and the reports (default out/bench-TIME)
  -v                       print the whole comparison of each protocol

All other flags are those of rebound-bench run (rebound-bench run -help-all).
`

const versusHelp = "usage: rebound-bench versus A B [flags]\n\nAnswers which of two targets is better, with ICMP and UDP, alternating. The flags are those of rebound-bench run.\n\n"

// versusProtocols are what both targets are measured with.
var versusProtocols = []string{"icmp", "udp"}

// versusFlags is the line of rebound-bench run that measures both targets with each protocol. silent says why a target
// does not echo on a UDP port, "" if it does: without an echo, every slice would wait for -timeout. only says why UDP
// is left out, "" if it is not.
func versusFlags(e *command.Env, args []string, silent func(target string, port int) string) (o *runOptions,
	targets []string, only string, err error) {
	o, err = flagsOf(e, args, "versus", versusHelp, versusShortHelp, func(o *runOptions, c *runLine) error {
		targets = c.targets
		for _, name := range []string{"target", "ab", "lossless", "under", "json"} {
			if c.given[name] {
				return process.Usagef("-%s cannot be combined with versus (use rebound-bench run)", name)
			}
		}
		if len(targets) != 2 || targets[0] == targets[1] {
			return process.Usagef("want two different targets, got %s", sanitize.Text(fmt.Sprintf("%q", targets)))
		}
		measured := func(protocol, settings string) {
			for _, target := range targets {
				c.variants = append(c.variants, fmt.Sprintf("name=%s %s,target=%s%s", target, protocol, target,
					settings))
			}
		}
		c.targets = nil
		if c.given["proto"] {
			measured(o.base.Protocol(), "")
			return nil
		}
		protocols := versusProtocols
		if !c.given["driver"] && !c.given["iface"] { // which may reach what this host's sockets do not
			port := cmp.Or(int(o.base.Port), 7)
			for _, target := range targets {
				if why := silent(target, port); why != "" {
					only = fmt.Sprintf("%s does not echo UDP, %s", target, why)
					e.Log.Warn("only ICMP is compared: "+only+" (set -port, or start a responder there)", "target",
						target)
					protocols = []string{"icmp"}
					break
				}
			}
		}
		for _, p := range protocols {
			measured(p, ",proto="+p)
		}
		return nil
	})
	return o, targets, only, err
}

func versusCommand(e *command.Env, args []string) error {
	o, targets, only, err := versusFlags(e, args, silentUDP)
	if err != nil {
		return err
	}
	if err := measure.Writable(o.Out, o.Replace); err != nil {
		return err
	}
	defer process.OnSignal(o.Stop)()
	if o.advice != "" {
		e.Log.Info(o.advice)
	}
	result, err := measure.Run(o.Plan)
	if result == nil {
		return err
	}
	return errors.Join(err, printVersus(e, targets, only, result.Reports, o.verbose))
}

// silentUDP asks three times. It returns why a target does not echo, "" if it does.
func silentUDP(target string, port int) string {
	c, err := net.Dial("udp", net.JoinHostPort(target, strconv.Itoa(port)))
	if err != nil {
		return err.Error()
	}
	why := fmt.Sprintf("nothing answers on port %d", port)
	defer c.Close()
	b := make([]byte, 64)
	for range 3 {
		if _, err := c.Write([]byte("rebound")); err != nil {
			continue // the refusal of the one before
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		switch n, err := c.Read(b); {
		case err == nil && n > 0:
			return ""
		case errors.Is(err, unix.ECONNREFUSED):
			why = fmt.Sprintf("its port %d is closed", port)
		}
	}
	return why
}

// printVersus prints the answer and writes the page. only says why UDP was left out; all are the reports of both
// targets with one protocol, then with the next.
func printVersus(e *command.Env, targets []string, only string, all []*report.Report, verbose bool) (failed error) {
	v := page.Versus{A: targets[0], B: targets[1], OnlyICMP: only}
	for i := 0; i+1 < len(all); i += 2 {
		part := page.VersusPart{Name: strings.ToUpper(all[i].Traffic.Protocol), C: compare.Reports(all[i], all[i+1])}
		for _, r := range all[i : i+2] {
			if r.Dir != "" {
				part.Links = append(part.Links, page.Link{Name: r.Name(),
					Href: url.PathEscape(filepath.Base(r.Dir)) + "/" + report.HTMLFile})
			}
		}
		v.Parts = append(v.Parts, part)
	}
	fmt.Fprintln(e.Stdout, v.Answer())
	for _, part := range v.Parts {
		fmt.Fprintf(e.Stdout, "\n%s\n", part.Name)
		show := page.PrintSummary
		if verbose {
			show = page.PrintComparison
		}
		failed = errors.Join(failed, show(e.Stdout, part.C))
	}
	if len(all) == 0 || all[0].Dir == "" {
		return failed
	}
	return errors.Join(failed, e.WritePage(filepath.Join(filepath.Dir(all[0].Dir), "index.html"), v.Write))
}
