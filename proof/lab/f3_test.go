package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// f3Helpers binds the second function to vfio-pci for our responder, and leaves the first to the Linux driver. $module,
// $driver and $peer are set before it.
const f3Helpers = helpers + `
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
modprobe $module || fail modprobe $module
until_true 100 both
dev=$(having 1) ours=$(having 2)
addr=$(basename $(readlink /sys/class/net/$ours/device))
need responder bind $addr
say bound $addr
need ip addr add 10.9.0.2/24 dev $dev

in=polls
# start MORE ARGUMENTS...
start() { respond -config /lab/config.toml -set nic.driver=$driver -set nic.device=$addr -set "respond.addresses=[\"$peer/24\"]" "$@"; }
traffic() {
  ip neigh flush dev $dev
  up
  for s in 16 56 63 64 65 256 777 1472; do pings $1 $s; done
  floods $peer:7 $2 1472
}
`

// f3Script runs our responder in the guest, pinged from the Linux driver. Then our bench uses its function, and Linux
// answers.
const f3Script = f3Helpers + `
start
say ready $(grep '^ready' /tmp/out)
traffic 50 2000
say answered
need polls bench run -target $peer -iface $dev -driver afpacket -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/report
show bench cat /tmp/need
say benched
kill -9 $pid; wait $pid
say killed
start
traffic 20 200
say again
stop
say stopped
need ip link set $dev mtu 9000
start -set nic.mtu=9000
up
for s in 56 1473 2000 4096 8971 8972; do pings 20 $s; done
floods $peer:7 500 8972
say jumbo
stop
say stopped
need bench run -iface $addr -driver $driver -source 10.9.0.3 -target 10.9.0.2 -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/own
grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "the bench on vfio-pci lost replies"; }
grep -q '(sim)' /tmp/need || { show failed cat /tmp/need; fail "the report takes the model for silicon"; }
show bench cat /tmp/need
say measured
need bench run -iface $addr -driver $driver -mtu 9000 -size 9014 -source 10.9.0.3 -target 10.9.0.2 -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/jumbo
grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "the bench on vfio-pci lost jumbo frames"; }
say measured jumbo
need responder unbind $addr
ours_back() { [ -n "$(having 2)" ]; }
until_true 100 ours_back
say unbound
`

// f3 runs our responder inside the guest against the Linux driver on a second model.
func (c *card) f3(t *testing.T) { c.f3run(t, f3Script) }

func (c *card) f3run(t *testing.T, script string) {
	s := newScene(t)
	theirs, ours := s.pair(c, c.model, c.model)
	compared := false
	_, err := s.play(Machine{
		Limit: 150 * time.Second, OneCPU: true, IOMMU: true, Files: s.programs("flood", "responder", "bench"),
		Script: fmt.Sprintf("module=%s driver=%s peer=10.9.0.1\n%s", c.module, c.name, script),
		Say: func(key, _ string, _ Result) error {
			ours.killed(key == "killed")
			if (key == "killed" || key == "stopped" || key == "measured") && ours.port.BusMaster() {
				return fmt.Errorf("the responder's function may still do DMA when it was %s", key)
			}
			if key == "answered" {
				c.compare(t, theirs, ours)
				compared = true
			}
			return nil
		},
	}, "bench")
	if err != nil && !compared {
		c.compare(t, theirs, ours) // the first difference may be the cause
	}
	must.OK(t, err)
	proven(t, "F3", "ours on vfio-pci, Linux "+c.module+" as the peer", "pings, floods, bench, kill -9 and again")
}
