// Package cost measures the execution time of the XDP program per reply, using the kernel's test run facility, and the
// part that each guard takes.
package cost

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
	"github.com/rebound-nic/rebound/proof/corpus"
)

// Options describe a measurement.
type Options struct {
	Rounds int
	Runs   int // of each program in each round
	Stop   *atomic.Bool
}

// Row is one program and one request.
type Row struct {
	Request string
	Bytes   int
	Guards  string
	NS      []float64 // the program alone, one value per round
	Around  []float64 // test run overhead that was subtracted
}

// requests returns the table's requests: untagged ones from package corpus, and some of the same with a tag and with
// 1,500 bytes.
func requests() (all []corpus.Request) {
	for _, q := range corpus.Requests(0) {
		if slices.Contains([]string{"ping", "udp", "ping6", "udp6", "arp", "ns", "stamp", "stamp6"}, q.Name) {
			all = append(all, q)
		}
	}
	for _, q := range corpus.Requests(1) {
		if slices.Contains([]string{"ping", "udp", "ping6", "udp6", "stamp"}, q.Name) {
			q.Name += ", tagged"
			all = append(all, q)
		}
	}
	ours, theirs, data := corpus.Our4, corpus.Their4, make([]byte, 1500-14-28)
	for _, q := range []struct {
		name, kind string
		packet     []byte
	}{
		{"ping", "icmpv4", corpus.ICMPv4(theirs, ours, len(data))},
		{"udp", "udpv4", corpus.UDP(theirs, ours, 40000, corpus.UDPPorts[0], data)},
		{"stamp", "stampv4", corpus.UDP(theirs, ours, 40000, corpus.STAMPPorts[0], data)},
	} {
		all = append(all, corpus.Request{Name: q.name + ", 1500 bytes", Kind: q.kind,
			Frame: corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800, q.packet)})
	}
	return all
}

// guarded are the requests with a row for each guard.
var guarded = []string{"ping", "udp", "ping6"}

// Run measures all rows in alternating rounds. It requires root.
func Run(o Options) (rows []*Row, err error) {
	type bench struct {
		*xdp.Bench
		row *Row
	}
	var all []bench
	defer func() {
		for _, b := range all {
			b.Close()
		}
	}()
	for _, q := range requests() {
		for _, g := range xdp.Guards() {
			if g.Name != xdp.Guards()[0].Name && !slices.Contains(guarded, q.Name) {
				continue
			}
			b, err := xdp.NewBench(config(q, g), q.Frame)
			if err != nil {
				return nil, fmt.Errorf("%s with %s: %w", q.Name, g.Name, err)
			}
			rows = append(rows, &Row{Request: q.Name, Bytes: len(q.Frame), Guards: g.Name})
			all = append(all, bench{b, rows[len(rows)-1]})
		}
	}
	for range o.Rounds {
		for _, b := range all {
			if o.Stop.Load() {
				return nil, errInterrupted
			}
			p, around, err := b.Run(o.Runs)
			if err != nil {
				return nil, err
			}
			b.row.NS, b.row.Around = append(b.row.NS, float64(p.Nanoseconds())),
				append(b.row.Around, float64(around.Nanoseconds()))
		}
		slices.Reverse(all) // so that slow drift affects all alike
	}
	return rows, nil
}

var errInterrupted = errors.New("interrupted")

// config is the default configuration, except for a burst that no measurement exhausts, and with test packets only if
// requested, because they require a clock read for every frame.
func config(q corpus.Request, g xdp.Guard) fastpath.Config {
	c := fastpath.Config{
		MAC: corpus.OurMAC, Addresses: corpus.Addresses, UDPPorts: corpus.UDPPorts,
		ChecksumBytes: fastpath.DefaultChecksumBytes,
		// the requests are equal
		Rate: fastpath.DefaultRate, Burst: 1 << 32, Loop: 1 << 31, TicksPerSecond: 1e9,
	}
	if strings.HasPrefix(q.Name, "stamp") {
		c.STAMPPorts, c.Clock = corpus.STAMPPorts, new(atomic.Pointer[fastpath.Clock])
		c.Clock.Store(&fastpath.Clock{})
	}
	g.Without(&c)
	return c
}

// Explanation describes how the numbers were measured.
const Explanation = "The kernel runs the program itself (BPF_PROG_TEST_RUN), and gives the mean of all runs of a round. A program would refuse its own reply " +
	"in the next run; so another one goes before it, which puts the request back where the reply differs, and tail-calls it. That one " +
	"with an empty program behind it is measured in the same rounds and taken off, with the kernel's loop: the column *around*. Caches " +
	"and branch predictors are warm. Two looks at the clock are made for one frame in sixteen, and are in the mean with that share; " +
	"for test packets they are made for each."

// Markdown writes the tables.
func Markdown(rows []*Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| Request, all guards | bytes | ns | around |\n|---|--:|--:|--:|\n")
	for _, r := range rows {
		if r.Guards == rows[0].Guards {
			fmt.Fprintf(&b, "| %s | %d | %s | %.0f |\n", r.Request, r.Bytes, spread(r.NS), median(r.Around))
		}
	}
	fmt.Fprintf(&b, "\nGuards, and what is saved without them, round by round:\n\n| Request | guards | ns | saved |\n|---|---|--:|--:|\n")
	for _, r := range rows {
		if !slices.Contains(guarded, r.Request) {
			continue
		}
		saved := "–"
		for _, all := range rows {
			if all.Request == r.Request && all.Guards == rows[0].Guards && all != r {
				d := make([]float64, len(r.NS))
				for i := range d {
					d[i] = all.NS[i] - r.NS[i]
				}
				saved = spread(d)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Request, r.Guards, spread(r.NS), saved)
	}
	return b.String()
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// spread formats the median with the minimum and the maximum.
func spread(v []float64) string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", median(v), slices.Min(v), slices.Max(v))
}
