package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// efaF3Script runs our responder in the guest, on the second function behind the IOMMU. Stock tools measure it from the
// first function; they find it by its handover. Then our bench uses the first function.
const efaF3Script = efaHelpers + `
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
load
bdf() { basename $(readlink -f /sys/class/infiniband/$1/device); }
near=$(bdf $ib) addr=$(bdf $ibfar)
need responder bind $addr
say bound $addr
start() { # MORE ARGUMENTS...
  rm -f /tmp/out
  responder -set nic.driver=efa -set nic.device=$addr -set respond.handover=127.0.0.1:18515 -set respond.stamp_messages=true "$@" \
    >/tmp/out 2>/tmp/err &
  pid=$!
  await_ready
}
# client KEY COMMAND...: a stock tool's client, on the first function
client() {
  local k=$1; shift
  timeout 300 "$@" 127.0.0.1 >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/err; fail "$k: $*"; }
  show $k grep '^ *[0-9]' /tmp/near
  say $k
}
srd="ib_send_lat -c SRD -d $ib -x 0 -F -p 18516"
start
say ready $(grep '^ready' /tmp/out)
client pingpong ibv_ud_pingpong -d $ib -g 0 -n 200 -s 512
client ud ib_send_lat -c UD -d $ib -x 0 -F -n 200
client srd $srd -n 200
client srd4096 $srd -n 100 -s 4096
client srdall $srd -n 20 -a
say answered
kill -9 $pid; wait $pid
say killed
start
client again $srd -n 100
stop
show summary cat /tmp/out
say stopped
need responder bind $near
start
for p in ud srd stamp-srd; do
  need bench run -iface $near -driver efa -proto $p -target 127.0.0.1 -core 0 -count 200 -runs 1 -timeout 60s -warmup 0s -self-test 0s -out /tmp/$p
  grep -q 'received 200' /tmp/need || { show failed cat /tmp/need; fail "the bench lost messages of $p"; }
  grep -q '(sim)' /tmp/need || { show failed cat /tmp/need; fail "the report takes the model for silicon"; }
  show bench grep 'round trip\|sent' /tmp/need
  say measured $p
done
stop
say stopped
need responder unbind $near
need responder unbind $addr
both_there
say unbound
`

// TestLabEFAF3 runs our driver in the guest: as a responder measured by third-party tools (ibv_ud_pingpong and
// perftest) on Linux's driver, and as a bench.
func TestLabEFAF3(t *testing.T) {
	guests(t)
	beside(t, "efa/F3", efaF3)
}

func efaF3(t *testing.T) {
	l := newEFALab(t, efasim.EFA1, efasim.EFA3, sim.Impairment{})
	ours := l.functions[1]
	want := map[string]uint64{"pingpong": 200, "ud": 200, "srd": 200, "srd4096": 100, "srdall": 20 * 10, "again": 100}
	before := uint64(0)
	_, err := l.play(Machine{
		Limit: 200 * time.Second, IOMMU: true, Layers: []string{efa}, Files: l.programs("responder", "bench"), Script: efaF3Script,
		Say: func(key, _ string, r Result) error {
			r.log(t, key)
			sent := l.model(1).Counters().SendWRs
			switch n, client := want[key]; {
			case client && sent-before < n:
				return fmt.Errorf("%s: the responder's function sent %d messages, at least %d are expected", key, sent-before, n)
			case key == "killed" || key == "stopped":
				ours.killed(key == "killed")
				if ours.port.BusMaster() {
					return fmt.Errorf("the responder's function may still do DMA when it was %s", key)
				}
			}
			before = sent
			return nil
		},
	}, "summary", "bench")
	must.OK(t, err)
	proven(t, "F3", "ours on vfio-pci, Linux efa as the peer", "%d messages to ibv_ud_pingpong and perftest, kill -9 and again", before)
}
