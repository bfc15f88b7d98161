package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// mlx4VerbsScript runs our responder beside Linux's mlx4_en and mlx4_ib on the second function, in the namespace: for
// UDP to the kernel's own address, $peer, and for all of an address that the interface lacks, 10.9.0.3. A killed
// responder leaves neither rules nor addresses behind. Then our bench uses the second function in the same way.
const mlx4VerbsScript = besideHelpers + `
responds nic.driver=mlx4 respond.addresses=$peer/24 respond.udp_ports=[7,9000]
say own $(grep '^ready' /tmp/out)
show log cat /tmp/err
floods $peer:7 1000 1472
floods $peer:9000 300 200
kernels 100 # pings of the responder's address too: the kernel answers them
say answered
kill -9 $pid; wait $pid
kernels 50
say killed
responds nic.driver=mlx4 respond.addresses=$ours/24
say ready $(grep '^ready' /tmp/out)
need /bin/ping -c 1 -W 60 $ours
for s in 16 56 64 65 256 777 1472; do pings 50 $s $ours; done
floods $ours:7 500 1472
mixes
show nics there sh -c 'unshare -m sh -c "mount -t sysfs sys /sys; exec responder nics"'
stop
show summary cat /tmp/out
need gone
say stopped
echoes
benches udp 100 -target 10.9.0.4 -proto udp -port 7 -closed
benches stamp 50 -target 10.9.0.4 -proto stamp -size 1514 -rate 50
! farside bench run -iface $far -driver mlx4 -target 10.9.0.2 -count 1 -out /tmp/refused >/tmp/bench 2>&1 && grep -q 'probe with UDP or STAMP' /tmp/bench ||
  { show failed cat /tmp/bench; fail "ICMP is not refused"; }
stop
say stopped
need rmmod mlx4_ib
need rmmod mlx4_en
need rmmod mlx4_core
say gone
`

// TestLabMlx4Verbs runs our driver beside Linux's on the same interface (rung F3).
func TestLabMlx4Verbs(t *testing.T) {
	guests(t)
	beside(t, "mlx4/F3verbs", mlx4Verbs)
}

func mlx4Verbs(t *testing.T) {
	s := newScene(t)
	_, g := s.pair(mlx4Card, mlx4Card.model, mlx4Card.model)
	rules := func() (n int) {
		g.port.Hold(func() { n = g.model.(*mlx4sim.Model).Rules() })
		return n
	}
	idle, most := -1, 0
	frames := fromEnv("REBOUND_LAB_FRAMES", 1000)
	_, err := s.play(Machine{
		OneCPU: true,
		Limit:  500*time.Second + time.Duration(frames)*5*time.Millisecond,
		Files:  s.programs("responder", "flood", "bench"),
		Script: "modprobe mlx4_core log_num_mgm_entry_size=-1 || fail modprobe mlx4_core\n" +
			fmt.Sprintf("module=mlx4_en driver=mlx4 peer=10.9.0.1 frames=%d\n", frames) + mlx4VerbsScript,
		Say: func(key, text string, r Result) error {
			switch key {
			case "own", "ready":
				if !strings.Contains(text, "driver=mlx4") || !strings.Contains(text, "via=verbs") {
					return fmt.Errorf("the responder is not beside the kernel's driver: %s", text)
				}
				if n := rules(); idle < 0 {
					idle = n - 2 // one for each port
				} else if n <= idle {
					return fmt.Errorf("the responder has no rule on the card, which has %d", n)
				}
				most = max(most, rules()-idle)
			case "measured", "killed", "stopped":
				if err := r.datagrams(500 + frames); len(r["summary"]) > 0 && err != nil {
					return err
				}
				if !await.Holds(func() bool { return rules() == idle }) {
					return fmt.Errorf("the card has %d rules, before there were %d", rules(), idle)
				}
			}
			return nil
		},
	}, "log", "nics", "mixed", "summary", "bench", "failed")
	must.OK(t, err)
	proven(t, "F3", "ours beside Linux mlx4_en, Linux mlx4_en as the peer",
		"responder and bench, and the kernel's own traffic on one interface; %d rules on the card", most)
}
