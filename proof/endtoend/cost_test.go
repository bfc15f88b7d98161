package endtoend

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/programs"
)

var costProbes = flag.Uint64("cost-probes", 200, "how many probes TestNodeCost measures in each case, 200 a second")

// What a node of a fleet takes with the chart's transport and protocol, at ten probes a second to each of 20 peers: the
// prober's memory is bounded however its metrics leave it. It prints the memory, and the share of a core, for
// docs/fleet/many-hosts.md.
func TestNodeCost(t *testing.T) {
	n := newNetwork(t)
	var addresses, targets []string
	for i := range 20 {
		addresses = append(addresses, fmt.Sprintf("10.98.0.%d/24", 100+i))
		targets = append(targets, "-target", fmt.Sprintf("stamp:10.98.0.%d", 100+i))
	}
	n.startResponder(t, "xdp", addresses...)
	var receiver net.Listener
	n.must(n.near.Do(func() (err error) {
		receiver, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	defer receiver.Close()
	go http.Serve(receiver, http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	url := "http://" + receiver.Addr().String()
	for i, c := range []struct{ what, push string }{{"no metrics", ""}, {"a scrape every 5 s", ""},
		{"OTLP every 5 s", url + "/v1/metrics"}, {"remote-write every 5 s", url + "/write"}} {
		w := &watched{n: n, listen: fmt.Sprintf("127.0.0.1:%d", 9470+i)}
		command := exec.Command(programs.Path(t, "watch"), append(
			[]string{"-transport", "socket", "-rate", "10", "-listen", w.listen, "-push-url", c.push, "-push-interval",
				"5s"}, targets...)...)
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		w.begin(command)
		usage := func() (cpu time.Duration, resident int) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.Process.Pid))
			n.must(err)
			_, rest, _ := strings.Cut(string(b), ") ")
			f := strings.Fields(rest)
			user, _ := strconv.Atoi(f[11])
			system, _ := strconv.Atoi(f[12])
			pages, _ := strconv.Atoi(f[21])
			return time.Duration(user+system) * 10 * time.Millisecond, pages * os.Getpagesize()
		}
		w.until("all targets answer", func(v map[string]float64) bool {
			up := 0
			for name, x := range v {
				if strings.HasPrefix(name, "rebound_target_up{") && x == 1 {
					up++
				}
			}
			return up == 20
		})
		begin, first := time.Now(), n.received()
		scraped := first
		before, _ := usage()
		await.Until(t, "the probes arrive", func() bool {
			now := n.received()
			if i == 1 && now-scraped >= 1000 {
				w.page()
				scraped = now
			}
			return now-first >= *costProbes
		}, w.Log.String)
		took := time.Since(begin)
		after, resident := usage()
		t.Logf("%s: %.1f MB resident, %.1f %% of a core", c.what, float64(resident)/1e6,
			100*float64(after-before)/float64(took))
		if resident > 35e6 {
			t.Errorf("%s: %d bytes are resident", c.what, resident)
		}
		w.end()
	}
}
