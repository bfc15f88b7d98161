package lab

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

//go:embed vfio.py
var vfioProgram []byte

const vfioMessages = 200 // in each direction

var vfioScript = fmt.Sprintf(helpers+`
modprobe vfio_iommu_type1 || fail modprobe vfio_iommu_type1
modprobe vfio-pci || fail modprobe vfio-pci
addrs=
for d in /sys/bus/pci/devices/*; do
  [ $(cat $d/vendor) = 0x15b3 ] || continue
  echo vfio-pci >$d/driver_override
  echo $(basename $d) >/sys/bus/pci/drivers_probe
  addrs="$addrs $(basename $d)"
done
cd /usr/lib/python3/dist-packages
python3 -u /lab/vfio.py %d $addrs >/tmp/vfio 2>&1 &
pid=$!
carried() { [ -e /tmp/carried ] || ! kill -0 $pid; }
until_true 600 carried
[ -e /tmp/carried ] || { show failed cat /tmp/vfio; fail the program ended; }
say carried
touch /tmp/seen
wait $pid || { show failed cat /tmp/carried; fail the program ended badly; }
show vfio cat /tmp/carried
say closed
`, vfioMessages)

// TestLabVFIOVerbs runs rdma-core's provider for vfio-pci, which includes a complete driver of the card, on two
// functions of the model: a process without the kernel's driver, whose queues are in memory registered by CREATE_UMEM.
func TestLabVFIOVerbs(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F4vfio", vfioVerbs)
}

func vfioVerbs(t *testing.T) {
	s := newScene(t)
	available(t, s.kit.bringScapy(t.Context()))
	f, g := s.pair(mlx5Card, connectX(mlx5sim.ConnectX7), connectX(mlx5sim.ConnectX7))
	f.foreign, g.foreign = true, true
	var x, y mlx5sim.Counters
	r, err := s.play(Machine{
		Limit: 90 * time.Second, IOMMU: true,
		Files:  map[string][]byte{"vfio.py": vfioProgram},
		Layers: []string{pyverbs, scapy}, Memory: "2G",
		Script: vfioScript,
		Say: func(key, _ string, _ Result) error {
			if key == "carried" {
				// A message is a packet and its acknowledgement; with a slow guest, some may be retransmitted.
				x, y = roce(f, g)
				if x.RoCETx < 6*vfioMessages || y.RoCETx < 2*vfioMessages || x.RoCETx+y.RoCETx != x.RoCERx+y.RoCERx ||
					roceLost(x, y, 0) {
					return fmt.Errorf("RoCE: %d and %d packets left, %d and %d arrived, %d and %d no QP took",
						x.RoCETx, y.RoCETx, x.RoCERx, y.RoCERx, x.RoCEDropped, y.RoCEDropped)
				}
			}
			return nil
		},
	}, "vfio")
	must.OK(t, err)
	want := fmt.Sprintf("functions: %d\nloopback: %[1]d\nclosed", 2*vfioMessages)
	must.Equal(t, strings.Join(r["vfio"], "\n"), want, "the program printed %q")
	proven(t, "F4", "rdma-core's provider on vfio-pci",
		"%d messages between functions, %[1]d within one, %d and %d RoCE packets", 2*vfioMessages, x.RoCETx, y.RoCETx)
}
