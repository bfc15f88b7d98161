package responder

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// On a pair of ConnectX-3 models the bench is answered, ICMP and UDP, with inline replies and others. After a responder
// is killed, the next one works.
func TestAnswersOnMlx4(t *testing.T) {
	needs.Long(t)
	here, there, end := adapters(t, "mlx4")
	start := func(sets ...string) *child {
		t.Helper()
		p := startOn(t, here, append([]string{"respond.addresses=10.0.0.2/24", "respond.udp_ports=[7]"}, sets...)...)
		if !strings.HasPrefix(p.Ready, "ready driver=mlx4 device=vfio-user:") {
			t.Fatalf("not ready: %q\n%s", p.Ready, p.Log)
		}
		return p
	}
	run := func(args ...string) {
		t.Helper()
		r := bench(t, append(args, "-driver", "mlx4", "-iface", there, "-source", "10.0.0.3", "-target", "10.0.0.2",
			"-closed", "-count", "60")...)
		if r.Counts.Received+r.Counts.Late != 60 || r.Counts.Corrupt != 0 || r.Device.Driver != "mlx4" ||
			r.Device.Backend != "sim" {
			t.Errorf("%v: %+v, %+v", args, r.Counts, r.Device)
		}
	}
	p := start()
	run()
	run("-proto", "udp", "-port", "7", "-size", "224")
	run("-proto", "udp", "-port", "7", "-size", "1514")
	must.OK(t, p.Process.Kill())
	p.Wait()
	p = start("nic.push=off")
	run()
	p.stop(t, unix.SIGTERM)
	end()
}
