package lab

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// mlx5CountersScript has Linux's driver drop pings from some addresses in the card, and waits until the card has
// counted one from the first address, two from the second and so on, and then as many again.
const mlx5CountersScript = pairHelpers + `
for m in sch_ingress cls_flower act_gact; do modprobe $m || fail modprobe $m; done
need arp -s $peer 02:00:00:00:00:02
need there arp -s 10.9.0.2 02:00:00:00:00:01
need ethtool -K $dev hw-tc-offload on
need /bin/tc qdisc add dev $dev ingress
for a in $from; do
  need there ip addr add $a/24 dev $far
  need /bin/tc filter add dev $dev ingress protocol ip prio 1 flower skip_sw ip_proto icmp src_ip $a action drop
done
sends() {
  local n=1
  for a in $from; do there /bin/ping -q -I $a -c $n -i 0.01 -W 1 10.9.0.2 >/dev/null 2>&1; n=$((n+1)); done
}
# counted: the packets that each filter reports, by hardware
counted() { /bin/tc -s filter show dev $dev ingress | awk '/src_ip/ { a = $2 } /Sent hardware/ { print a, $5 }' | sort -u | tr '\n' ' '; }
counts() { [ "$(counted)" = "$1" ]; }
for round in 1 2; do
  sends
  want= n=1
  for a in $from; do want="$want$a $((n*round)) "; n=$((n+1)); done
  tries=0; until counts "$want"; do
    tries=$((tries+1)); [ $tries -lt 300 ] || { show failed /bin/tc -s filter show dev $dev ingress; fail "the card counted $(counted), want $want"; }
    sleep 0.1
  done
  say counted $(counted)
done
pings 50 56
need /bin/tc qdisc del dev $dev ingress
need rmmod mlx5_core
say gone
`

// TestLabMlx5Counters has Linux's driver count dropped frames in bulks of flow counters, and read several at a time.
// The kernel is Debian 12's: later ones of Debian are built without tc for mlx5.
func TestLabMlx5Counters(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F2counters", func(t *testing.T) {
		s := newScene(t)
		available(t, s.kit.bringTC(t.Context()))
		k, err := s.kit.withKernel(t.Context(), "bookworm")
		available(t, err)
		s.kit = k
		f, _ := s.pair(mlx5Card, connectX(mlx5sim.ConnectX5), connectX(mlx5sim.ConnectX5))
		var n mlx5sim.Counters
		_, err = s.play(Machine{
			Limit: 150 * time.Second, Layers: []string{tc},
			Script: "module=mlx5_core peer=10.9.0.1 from='10.9.0.11 10.9.0.12 10.9.0.13 10.9.0.14 10.9.0.15'\n" + mlx5CountersScript,
			Say: func(key, _ string, _ Result) error {
				if key == "counted" {
					f.port.Hold(func() { n = f.model.(*mlx5sim.Model).Counters() })
				}
				return nil
			},
		}, "failed")
		must.OK(t, err)
		if n.CounterBulks == 0 || n.CounterReads == 0 {
			t.Errorf("Linux made %d bulks of flow counters, and read several %d times", n.CounterBulks, n.CounterReads)
		}
		proven(t, "F2", "Linux mlx5_core, tc",
			"30 pings dropped and counted by the card, several counters read %d times", n.CounterReads)
	})
}
