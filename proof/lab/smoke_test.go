package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// smokeScript tests each card briefly: Linux's driver on one function, our responder on the other by VFIO, and Linux
// pings us. Set before it: $efa, if the guest has Linux's efa driver.
const smokeScript = efaHelpers + `
peer=10.9.0.1
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
bdf() { d=$(readlink -f $1/device); case $(basename $d) in virtio*) d=$(dirname $d);; esac; basename $d; }
ends() { [ -n "$(having $near)" ] && [ -n "$(having $far)" ]; }
card() { # DRIVER MODULE NEAR FAR: the last digit of each function's MAC address
  local driver=$1 module=$2
  near=$3 far=$4
  modprobe $module || fail modprobe $module
  until_true 100 ends
  dev=$(having $near) addr=$(bdf /sys/class/net/$(having $far))
  need responder bind $addr
  in=polls
  respond -config /lab/config.toml -set nic.driver=$driver -set nic.device=$addr -set "respond.addresses=[\"$peer/24\"]"
  need ip addr add 10.9.0.2/24 dev $dev
  up
  for s in 16 777 1472; do pings 20 $s; done
  say answered $driver
  stop
  say stopped $driver
  need rmmod $module
}
cards
if [ -n "$efa" ]; then
  modprobe efa || fail modprobe efa
  ends() { [ -n "$(ibof $efanear)" ] && [ -n "$(ibof $efafar)" ] && [ $(ls -d /dev/infiniband/uverbs* | wc -l) = 2 ]; }
  until_true 100 ends
  ib=$(ibof $efanear) addr=$(bdf /sys/class/infiniband/$(ibof $efafar))
  need responder bind $addr
  in= # ibv_ud_pingpong polls, too
  respond -config /lab/config.toml -set nic.driver=efa -set nic.device=$addr -set respond.handover=127.0.0.1:18515
  timeout 300 ibv_ud_pingpong -d $ib -g 0 -n 50 -s 512 127.0.0.1 >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/err; fail ibv_ud_pingpong; }
  say answered efa
  stop
  say stopped efa
  need rmmod efa
fi
`

// TestLabSmoke has the device models of all cards, and QEMU's virtio, in one guest: each Linux driver comes up, gets
// replies from our driver on a second function, and is unloaded. It is the part of the lab that make test runs.
func TestLabSmoke(t *testing.T) {
	guests(t)
	attempts(t, smoke)
}

func smoke(t *testing.T) {
	s := newScene(t)
	efa, layers := "yes", []string{efa}
	if err := s.kit.bringEFA(t.Context()); errors.Is(err, errCannot) {
		t.Logf("without EFA: %v", err)
		efa, layers = "", nil
	} else if err != nil {
		t.Fatal(err)
	}
	functions := map[string][2]*function{} // Linux's and ours, by our driver
	var scripted strings.Builder           // the guest's script for each
	efaCard := *efaCard
	efaCard.model = efaModel(efasim.EFA1)
	for _, c := range append(running(catalogue.Smoke), &efaCard) {
		n := len(s.functions)
		near, far := s.pair(c, c.model, c.model)
		functions[c.name] = [2]*function{near, far}
		if c == &efaCard {
			fmt.Fprintf(&scripted, "}\nefanear=%x efafar=%x\n", n+1, n+2)
		} else {
			fmt.Fprintf(&scripted, "card %s %s %x %x\n", c.name, c.module, n+1, n+2)
		}
	}
	n := len(s.functions)
	virtioLine := fmt.Sprintf("card virtio virtio_net %x %x\n", n+1, n+2)
	var virtio []Device
	for i := range 2 {
		virtio = append(virtio, Device{
			Backend: fmt.Sprintf("hubport,id=n%d,hubid=0", i),
			Model:   fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=02:00:00:00:00:%02x,romfile=,disable-legacy=on,iommu_platform=on", i, n+i+1),
		})
	}
	answered := []string{}
	_, err := s.play(Machine{
		Limit: 2 * time.Minute, OneCPU: true, IOMMU: true, Devices: virtio, Layers: layers,
		Files:  s.programs("responder"),
		Script: "efa=" + efa + "\ncards() {\n" + virtioLine + scripted.String() + smokeScript,
		Say: func(key, text string, _ Result) error {
			switch f, model := functions[text]; {
			case key == "unbooted": // it restarts
				answered = nil
			case key == "answered":
				answered = append(answered, text)
			case key == "stopped" && model && f[1].port.BusMaster():
				return fmt.Errorf("%s: the responder's function may still do DMA after the responder ended", text)
			}
			return nil
		},
	}, "failed")
	must.OK(t, err)
	want := "virtio"
	for _, c := range running(catalogue.Smoke) {
		want += " " + c.name
	}
	if efa != "" {
		want += " efa"
	}
	check.Equal(t, strings.Join(answered, " "), want, "answered: %s")
}
