package responder

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkReady measures the time from starting a responder on an interface that is up to its ready line.
func BenchmarkReady(b *testing.B) {
	for _, driver := range []string{"xdp", "afxdp", "afpacket"} {
		b.Run(driver, func(b *testing.B) {
			w := newWire(b)
			var all []time.Duration
			for b.Loop() {
				cmd := exec.Command(program(b), "-set", "nic.driver="+driver, "-set", "nic.device="+port, "-set", "respond.addresses="+ours4+"/24")
				out, err := cmd.StdoutPipe()
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				w.here.do(b, func() { err = cmd.Start() })
				if err != nil {
					b.Fatal(err)
				}
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
