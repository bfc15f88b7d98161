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
srd="ib_send_lat -c SRD -d $ib -x 0 -F -p 18516"
start -set nic.device=$addr
say ready $(grep '^ready' /tmp/out)
client pingpong ibv_ud_pingpong -d $ib -g 0 -n 100 -s 512
client ud ib_send_lat -c UD -d $ib -x 0 -F -n 100
client srd $srd -n 100
client srd4096 $srd -n 100 -s 4096
client srdall $srd -n 5 -a
say answered
kill -9 $pid; wait $pid
say killed
start -set nic.device=$addr
client again $srd -n 100
stop
show summary cat /tmp/out
say stopped
need responder bind $near
start -set nic.device=$addr
measures $near
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
	want := map[string]uint64{"pingpong": 100, "ud": 100, "srd": 100, "srd4096": 100, "srdall": 5 * 10, "again": 100}
	before := uint64(0)
	_, err := l.play(Machine{
		Limit: 200 * time.Second, OneCPU: true, IOMMU: true, Layers: []string{efa},
		Files: l.programs("responder", "bench"), Script: efaF3Script,
		Say: func(key, _ string, r Result) error {
			r.log(t, key)
			sent := l.model(1).Counters().SendWRs
			switch n, client := want[key]; {
			case client && sent-before < n:
				return fmt.Errorf("%s: the responder's function sent %d messages, at least %d are expected", key,
					sent-before, n)
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
	proven(t, "F3", "ours on vfio-pci, Linux efa as the peer",
		"%d messages to ibv_ud_pingpong and perftest, kill -9 and again", before)
}
