package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// mlx4Script makes Linux steer by flow rules, spread flows over two rings and then use one, run its self-test, lose and
// restore the link, tag frames, reset a device that failed, and reload its core driver.
const mlx4Script = helpers + `
modprobe mlx4_core log_num_mgm_entry_size=-1 || fail modprobe mlx4_core
bring mlx4_en
need arp -s $peer 02:00:00:00:ee:01
need ethtool -K eth0 rxhash on
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do floods $peer:7 100 200; done
settled spread ethtool -S eth0 # Linux asks the device four times a second, where the machine is quiet
turned() { ethtool -t eth0 >/tmp/turned; }
until_true 20 turned
show turned cat /tmp/turned
up
say turned
need ethtool -L eth0 rx 1 tx 1
up
floods $peer:7 500 1472
say one
need ethtool -L eth0 rx 2 tx 2
up
say unplug
until_true 100 grep -q 0 /sys/class/net/eth0/carrier
say plug
up
pings 50 56
for i in 1 2 3; do
  need ip link set eth0 down
  up
done
pings 50 1472
say fatal
recovered() { dmesg | grep -q "mlx4_restart_one was ended, ret=0"; }
until_true 300 recovered
until_true 50 test -e /sys/class/net/eth0
ip addr add 10.9.0.2/24 dev eth0 2>/dev/null
up
pings 50 56
say recovered
need ip link set eth0 down
need rmmod mlx4_en
need rmmod mlx4_core
say gone
`

func TestLabMlx4(t *testing.T) {
	guests(t)
	beside(t, "mlx4/Load", mlx4Load)
}

func mlx4Load(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	f := s.serve(mlx4Card, near, mlx4Card.model)
	m := f.model.(*mlx4sim.Model)
	p := newPeer(far)
	defer p.close()
	counters := settling{}
	_, err := s.play(Machine{
		Limit: 150 * time.Second, Files: s.programs("flood"), Script: "peer=10.9.0.1\n" + mlx4Script,
		Say: func(key, _ string, r Result) error {
			switch key {
			case "spread":
				n := numbers(r["spread"])
				if err := counters.disagree(t, key, f.agree(mlx4Card, n, true)); err != nil {
					return err
				}
				if a, b := n["rx0_packets"], n["rx1_packets"]; a < 200 || b < 200 || a+b < 1600 {
					return fmt.Errorf("16 flows of 100 datagrams were spread as %d and %d", a, b)
				}
			case "turned":
				if !strings.Contains(strings.Join(r["turned"], "\n"), "PASS") {
					return errors.New("Linux's self-test failed")
				}
			case "unplug":
				near.SetUp(false)
			case "plug":
				near.SetUp(true)
			case "fatal":
				m.Catastrophe(0x12345678)
			}
			return nil
		},
	}, "turned")
	must.OK(t, err)
	proven(t, "F2", "Linux mlx4_en, by flow rules", "16 flows on two rings, its self-test, cable, reset, reload")
}
