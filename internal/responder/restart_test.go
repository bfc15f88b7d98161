package responder

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// BenchmarkRestart replaces the responder while a bench sends 10,000 probes a second, and reports the largest number of lost
// probes of any run, and the median and the maximum of the longest round trips: a request that waits for the next responder is answered late.
func BenchmarkRestart(b *testing.B) {
	for _, c := range []struct {
		name string
		sets []string
		stop bool // the one that runs, before the next one starts
	}{
		{"afpacket, stop and start", []string{"nic.driver=afpacket"}, true},
		{"afpacket, take over", []string{"nic.driver=afpacket", "nic.take_over=true"}, false},
		{"afxdp, take over", []string{"nic.driver=afxdp", "nic.take_over=true"}, false},
		{"xdp, pinned", []string{"nic.driver=xdp", "nic.pin=restart"}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWire(b)
			sets := append(c.sets, "guard.rate=0", "cpu.cores=0")
			p := w.start(b, nil, sets...)
			b.Cleanup(func() { exec.Command(program(b), "unpin", "restart").Run() })
			var lost int64
			var longest []time.Duration
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "report")
				bench := exec.Command(programs.Path(b, "bench"), "run", "-target", ours4, "-proto", "udp", "-port", "7", "-driver", "afpacket", "-rate", "10000",
					"-duration", "3s", "-runs", "1", "-warmup", "0s", "-timeout", "2s", "-self-test", "0s", "-core", "1", "-ring-size", "16384", "-out", dir)
				said := &programs.Output{}
				bench.Stdout, bench.Stderr = said, said
				var err error
				w.there.do(b, func() { err = bench.Start() })
				if err != nil {
					b.Fatal(err)
				}
				before := w.replies(b)
				await.Until(b, "5,000 replies", func() bool { return w.replies(b) >= before+5000 }, said.String)
				if c.stop {
					p.Process.Signal(unix.SIGTERM)
					p.Wait()
				}
				next := w.start(b, nil, sets...)
				p.Wait()
				p = next
				if err := bench.Wait(); err != nil {
					b.Fatal(err, said)
				}
				r := must.Get(report.Read(dir))(b)
				lost = max(lost, r.Counts.Sent-r.Counts.Received-r.Counts.Late)
				longest = append(longest, time.Duration(r.Main().Total.Max))
			}
			slices.Sort(longest)
			b.ReportMetric(float64(lost), "lost")
			b.ReportMetric(float64(longest[len(longest)/2].Microseconds())/1000, "ms/longest")
			b.ReportMetric(float64(longest[len(longest)-1].Microseconds())/1000, "ms/maximum")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// replies is how many frames the kernel's end of the wire has received.
func (w *wire) replies(t testing.TB) (n uint64) {
	t.Helper()
	w.there.do(t, func() {
		l := must.Get(netlink.LinkByName(peer))(t)
		n = l.Attrs().Statistics.RxPackets
	})
	return n
}
