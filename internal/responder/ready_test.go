package responder

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// BenchmarkReady measures the time from starting a responder on an interface that is up to its ready line.
func BenchmarkReady(b *testing.B) {
	for _, driver := range []string{"xdp", "afxdp", "afpacket"} {
		b.Run(driver, func(b *testing.B) {
			w := newWire(b)
			var all []time.Duration
			for b.Loop() {
				cmd := exec.Command(program(b), set("nic.driver="+driver, "nic.device="+port,
					"respond.addresses="+ours4+"/24")...)
				out := must.Get(cmd.StdoutPipe())(b)
				start := time.Now()
				must.OK(b, w.here.try(b)(cmd.Start))
				if n, err := out.Read(make([]byte, 1<<10)); n == 0 {
					b.Fatal("not ready: ", err)
				}
				all = append(all, time.Since(start))
				cmd.Process.Signal(unix.SIGTERM)
				cmd.Wait()
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms/ready")
		})
	}
}
