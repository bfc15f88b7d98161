package endtoend

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// TestStoppedBench stops the bench until its ring or socket overflows. In each kind of measurement, the bench reports
// that it dropped the replies itself: what it reports as lost between the hosts was lost there, and the parts add up to
// the probes sent.
func TestStoppedBench(t *testing.T) {
	n := newNetwork(t)
	for _, c := range []struct {
		name string
		args []string
		how  []string
		end  bool // by Ctrl-C
	}{
		{"ab", []string{"-rate", "4000", "-ab", "name=a", "-ab", "name=b", "-slice", "1s", "-duration", "1s"}, ways[0], false},
		{"sweep", []string{"-rate", "3000,4000", "-count", "3000", "-runs", "1"}, ways[1], false},
		{"interrupted", []string{"-rate", "5000", "-duration", "1h"}, ways[2], true},
	} {
		t.Run(c.name+"/"+strings.Join(c.how, " "), func(t *testing.T) {
			n.stopped(t, slices.Concat(c.args, c.how), c.end)
		})
	}
}

func (n *network) stopped(t *testing.T, args []string, interrupt bool) {
	if !slices.Contains(args, "socket") {
		args = append(args, "-ring-size", "64")
	}
	i := n.newImpairer()
	dir := filepath.Join(t.TempDir(), "out")
	c := n.prepare(append(quick("-target", far4, "-proto", "udp", "-port", i.port(), "-warmup", "0s", "-timeout", "2s",
		"-out", dir), args...)...)
	const held = 1000
	resumed := make(chan struct{})
	i.serve(false, 100, held, func() {
		defer close(resumed)
		check.OK(t, stopProcess(c.Process.Pid))
		before := n.arrived()
		for _, r := range i.held {
			i.send(r)
		}
		await.Holds(func() bool { return n.arrived() >= before+held })
		check.OK(t, c.Process.Signal(syscall.SIGCONT))
	})
	c.begin()
	if interrupt {
		<-resumed
		before := n.received()
		await.Until(t, "more probes", func() bool { return n.received() > before+2000 }, c.said.String)
		n.must(c.Process.Signal(syscall.SIGINT))
	}
	r := c.wait()
	i.end()
	folders, err := filepath.Glob(filepath.Join(dir, "*", "report.json"))
	if _, alone := report.Read(dir); alone == nil {
		folders = []string{filepath.Join(dir, "report.json")}
	}
	if r.code != 0 || err != nil || len(folders) == 0 {
		t.Fatalf("%d %v %v\n%s%s", r.code, err, folders, r.out, r.errors)
	}
	check.Contains(t, r.out, "dropped here")
	var sum report.Counts
	for _, f := range folders {
		n := must.Get(report.Read(filepath.Dir(f)))(t).Counts
		sum.Add(&n)
		least, most := n.Received+n.Late+n.CorruptOnly+n.LostLeast(), n.Received+n.Late+n.CorruptOnly+n.Lost
		for _, part := range []struct{ n, uncertain int64 }{{n.SendFailed, n.SendFailedUncertain},
			{n.DroppedHere, n.DroppedHereUncertain},
			{n.RefusedThere, n.RefusedThereUncertain}, {n.DroppedThere, n.DroppedThereUncertain}} {
			least, most = least+part.n-part.uncertain, most+part.n
		}
		if least > n.Sent || most < n.Sent || least == most && least != n.Sent {
			t.Errorf("the parts of %+v add up to %d to %d, sent %d", n, least, most, n.Sent)
		}
	}
	missing := sum.Sent - sum.Received - sum.Late
	if sum.Sent+sum.NotAwaited != i.got || sum.LostLeast() > i.lost ||
		!interrupt && (sum.DroppedHere < 200 || sum.DroppedHere < missing-i.lost || sum.Lost < i.lost) {
		t.Errorf("%+v; %d arrived there, %d were lost, %d are missing\n%s%s", sum, i.got, i.lost, missing, r.out,
			r.errors)
	}
}

// TestStoppedWatch stops a watch until its ring or socket overflows. Its metrics report the missing replies as perhaps
// dropped here, never as certainly lost, and its target is up.
func TestStoppedWatch(t *testing.T) {
	n := newNetwork(t)
	for at, how := range ways {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			i := n.newImpairer()
			target := "udp:" + far4 + ":" + i.port()
			var w *watched
			started, resumed := make(chan struct{}), make(chan struct{})
			const held, fill = 200, 20000 // fill are duplicates, which fill the ring or the socket's buffer
			i.serve(false, 100, held, func() {
				defer close(resumed)
				<-started
				check.OK(t, stopProcess(w.Process.Pid))
				before := n.arrived()
				for range fill {
					i.send(i.held[0])
				}
				for _, r := range i.held {
					i.send(r)
				}
				await.Holds(func() bool { return n.arrived() >= before+fill+held })
				check.OK(t, w.Process.Signal(syscall.SIGCONT))
			})
			w = n.watch(9480+at, append([]string{"-target", target, "-rate", "1000", "-timeout", "3s"}, how...)...)
			close(started)
			<-resumed
			get := func(v map[string]float64, name string) int64 { return int64(v[of("rebound_"+name, target)]) }
			v := w.until("the outcome of all probes until the stop", func(v map[string]float64) bool {
				missing := get(v, "lost_total") + get(v, "lost_uncertain_total") // counted after twice the timeout
				return missing >= 100 && get(v, "rtt_seconds_count")+missing > 100+held+2000
			})
			w.end()
			i.end()
			wire := map[string]string{"afpacket": nearIface, "afxdp": nearIface, "socket": "udp4"}[how[1]]
			lost, uncertain, here := get(v, "lost_total"), get(v, "lost_uncertain_total"),
				int64(v[of("rebound_lost_uncertain_place_total", target, `place="here"`)])
			if lost > i.lost || here < 100 || here > uncertain ||
				int64(v[`rebound_dropped_here_total{wire="`+wire+`"}`]) < here ||
				v[of("rebound_target_up", target)] != 1 {
				t.Errorf("%d certainly lost, %d perhaps, %d of these perhaps here; %d were lost of %d\n%v\n%s", lost,
					uncertain, here, i.lost, i.got, v, w.Log)
			}
		})
	}
}
