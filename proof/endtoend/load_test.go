package endtoend

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A report says how its probes were spread, unless evenly; without a rate, a replay has the rate of its file.
func TestArrivals(t *testing.T) {
	n := newNetwork(t)
	var file bytes.Buffer
	w := pcapgo.NewWriterNanos(&file)
	n.must(w.WriteFileHeader(64, layers.LinkTypeEthernet))
	for i := range 11 { // 10 gaps of a millisecond
		n.must(w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, int64(i)*1e6), CaptureLength: 4, Length: 4},
			make([]byte, 4)))
	}
	capture := filepath.Join(t.TempDir(), "day.pcap")
	n.must(os.WriteFile(capture, file.Bytes(), 0o644))
	for _, x := range []struct {
		args     []string
		arrivals string
		rate     float64
	}{
		{[]string{"-rate", "2k", "-arrivals", "poisson"}, "poisson", 2000},
		{[]string{"-rate", "2k", "-arrivals", "burst:8"}, "burst:8", 2000},
		{[]string{"-arrivals", "replay:" + capture}, "replay:day.pcap", 1000},
		{[]string{"-rate", "3k", "-arrivals", "replay:" + capture}, "replay:day.pcap", 3000},
		{[]string{"-rate", "2k", "-arrivals", "periodic"}, "", 2000},
	} {
		rep, r := n.measure(t, append([]string{"-target", far4, "-count", "200"}, x.args...)...)
		if rep.Traffic.Arrivals != x.arrivals || rep.Traffic.Rate < x.rate-1e-6 || rep.Traffic.Rate > x.rate+1e-6 ||
			rep.Traffic.Mode != "open" || rep.Counts.Sent != 200 {
			t.Errorf("%v: %+v, %d sent", x.args, rep.Traffic, rep.Counts.Sent)
		}
		r.prints(t, rep.Traffic.Spread())
	}
	for _, args := range [][]string{{"-arrivals", "poisson"}, {"-arrivals", "burst:8", "-closed"},
		{"-arrivals", "replay:/no/such"}, {"-lossless", "1M", "-arrivals", "poisson"}} {
		n.inside(append([]string{"run", "-target", far4, "-out", filepath.Join(t.TempDir(), "r")}, args...)...).fails(t,
			2)
	}
}

// -under writes three reports, before, during and after a command that runs only in the second phase, and a page that
// compares them.
func TestUnder(t *testing.T) {
	n := newNetwork(t)
	dir := t.TempDir()
	pid, out := filepath.Join(dir, "pid"), filepath.Join(dir, "r")
	r := n.bench(quick("-target", far4, "-duration", "400ms", "-runs", "2", "-out", out, "-under",
		"echo $$ >"+pid+"; exec sleep 1000")...)
	for i, phase := range []string{"before", "during", "after"} {
		rep := read(t, filepath.Join(out, []string{"01-", "02-", "03-"}[i]+phase), r)
		if rep.Label != phase || len(rep.Runs) != 2 || len(rep.Warnings) > 0 ||
			!strings.Contains(strings.Join(rep.Notes, "\n"), "measured "+phase+" the load: echo") {
			t.Errorf("%s: %d runs, warnings %q, notes %q", rep.Label, len(rep.Runs), rep.Warnings, rep.Notes)
		}
		r.prints(t, phase+" ")
	}
	check.Contains(t, content(t, filepath.Join(out, "index.html")), "before against during against after")
	id := must.Get(strconv.Atoi(strings.TrimSpace(content(t, pid))))(t)
	await.Until(t, "the load has ended", func() bool { return !alive(id) })
	n.inside("run", "-target", far4, "-rate", "1k,2k", "-under", "true", "-out", filepath.Join(dir, "no")).fails(t, 2)
}
