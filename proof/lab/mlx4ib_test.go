package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// ibModules loads Linux's drivers of InfiniBand; opensm, where it manages a subnet, is Debian's.
const ibModules = helpers + `
modprobe mlx4_core || fail modprobe mlx4_core
for m in mlx4_ib ib_umad ib_ipoib; do modprobe $m || fail modprobe $m; done
ib=/sys/class/infiniband
export OSM_TMP_DIR=/tmp OSM_CACHE_DIR=/tmp
# manage DEVICE [OPTIONS]: a subnet manager on its port
manage() { opensm $2 -t 2000 -g 0x$(cut -d: -f5- $ib/$1/ports/1/gids/0 | tr -d :) -f /tmp/opensm.log >/tmp/opensm.out 2>&1 & sm=$!; }
`

// ibHelpers set up two InfiniBand ports on one wire: ib0 here, ib1 in a network namespace. Debian's opensm, a
// third-party program, manages the subnet from the first port.
const ibHelpers = ibModules + `
ports0() { [ -e $ib/mlx4_0/ports/1/state ] && [ -e /sys/class/net/ib0 ]; }
ports() { ports0 && [ -e $ib/mlx4_1/ports/1/state ] && [ -e /sys/class/net/ib1 ]; }
until_true 300 ports
in_state() { grep -q $1 $ib/mlx4_0/ports/1/state && grep -q $1 $ib/mlx4_1/ports/1/state; }
until_true 300 in_state INIT
say ports
# managed: both ports are active
managed() { i=0; while ! in_state ACTIVE; do i=$((i+1)); [ $i -lt 600 ] || { show failed tail -30 /tmp/opensm.log; fail no subnet manager took the ports; }; sleep 0.1; done; }
manage mlx4_0
managed
namespace
need ip link set ib1 netns $ns
for where in "" there; do
  for c in all default; do $where sysctl -q -w net.ipv6.conf.$c.disable_ipv6=0 net.ipv6.conf.$c.accept_dad=0; done
done
need there ip addr add 10.9.0.1/24 dev ib1
need ip addr add 10.9.0.2/24 dev ib0
need there ip addr add fd00::1/64 dev ib1
need ip addr add fd00::2/64 dev ib0
need there ip link set ib1 up
need ip link set ib0 up
met() { /bin/ping -c 1 -W 1 10.9.0.1 && /bin/ping -6 -c 1 -W 1 fd00::1; }
until_true 100 met
# dropped: what both ends gave up. While IPoIB asks for a path, at the start or because the subnet manager has it ask again, it keeps
# three packets and drops what follows.
dropped() { { cat /proc/net/dev; there cat /proc/net/dev; } | awk '/ib[01]:/ {n += $5 + $13} END {print n}'; }
# ibpings COUNT SIZE: like pings, but what IPoIB says that it dropped may be missing.
ibpings() {
  local before=$(dropped) was=$(echoed) got n=0
  /bin/ping -q -f -c $1 -s $2 $peer >/tmp/ping 2>&1
  while got=$(($(echoed) - was)); [ $((got + $(dropped) - before)) -lt $1 ]; do
    n=$((n+1)); [ $n -lt 300 ] || { show failed cat /tmp/ping; fail "$1 pings of $2 bytes: $got replies, $(($(dropped) - before)) dropped"; }
    sleep 0.1
  done
  [ $got -gt $(($1 / 2)) ] || { show failed cat /tmp/ping; fail "$1 pings of $2 bytes: $got replies, $(($(dropped) - before)) dropped"; }
  lost=$((lost + $1 - got))
}
lost=0
`

// ipoibScript tests IPoIB in both families, with every length that headers or page boundaries make different, up to the
// MTU of 2044; then libibverbs' programs; another subnet manager on the other port; a cable that is unplugged and
// plugged in again; and a device that fails and is reset.
const ipoibScript = "sysctl -q -w vm.nr_hugepages=64\n" + ibHelpers + `
say met "LID $(cat $ib/mlx4_0/ports/1/lid) $(cat $ib/mlx4_1/ports/1/lid)"
for peer in 10.9.0.1 fd00::1; do
  for s in 0 1 16 56 64 255 1000 1472 1996; do ibpings 20 $s; done
done
peer=10.9.0.1
ibpings 300 56
ibpings 20 5000 # in fragments
say pinged $lost lost
` + verbsHelpers + `
gid="" gidfar=""
verbsrun
ibpings 50 56 # IPoIB goes on beside it
say again
kill $sm
wait $sm
manage mlx4_1
moved() { grep -q 0x2 $ib/mlx4_0/ports/1/sm_lid && met; }
until_true 300 moved
ibpings 50 56
say moved
say unplug
until_true 100 in_state DOWN
say plug
linked() { ! grep -q DOWN $ib/mlx4_0/ports/1/state $ib/mlx4_1/ports/1/state; } # INIT, unless the subnet manager was there first
until_true 100 linked
kill -HUP $sm # or it looks again after ten seconds
managed
until_true 300 met
ibpings 50 56
say replugged
say fatal
recovered() { dmesg | grep -q "mlx4_restart_one was ended, ret=0"; }
until_true 600 recovered
until_true 300 ports0
need ip addr add 10.9.0.2/24 dev ib0
need ip addr add fd00::2/64 dev ib0
need ip link set ib0 up
# The subnet manager may have set the port up before mlx4_ib registered for the port's events, which it does at the end of
# its probe. Then Linux does not know the manager's LID, and IPoIB never joins. A new manager asks all ports to register again.
kill $sm
wait $sm
manage mlx4_1
managed
until_true 300 met
ibpings 50 56
say recovered
` + ibPhysical

// ibPhysical is the continuation on a machine without an IOMMU: our driver uses the second function through sysfs, with
// physical addresses.
const ibPhysical = `
kill -9 $sm; wait $sm
manage mlx4_0
until_true 300 grep -q "$(cat $ib/mlx4_0/ports/1/lid)" $ib/mlx4_1/ports/1/sm_lid # without a manager, leaving the groups takes ten seconds
addr=$(basename $(readlink $ib/mlx4_1/device))
need there ip link set ib1 netns 1
need responder bind -no-driver $addr
respond -config /lab/config.toml -set nic.driver=mlx4 -set nic.device=$addr -set nic.unsafe_no_iommu=true \
  -set 'respond.addresses=["10.9.0.1/24", "fd00::1/64"]'
say ready $(grep '^ready' /tmp/out)
ip neigh flush dev ib0 # or ib0 asks the old hardware address for half a minute
found() { kill -HUP $sm; met; }
until_true 300 found
for peer in 10.9.0.1 fd00::1; do
  for s in 16 56 148 149 1472; do ibpings 20 $s; done
done
say physical
# A manager that gives each port four LIDs, from one on that is divisible by four: all have others then, under traffic.
ourlid() { grep -o 'IPoIB is up.*lid=[0-9]*' /tmp/err | tail -n 1 | sed 's/.*lid=//'; }
waslid=$(ourlid)
kill -9 $sm; wait $sm
/bin/ping -q -i 0.01 10.9.0.1 >/dev/null 2>&1 &
asking=$!
manage mlx4_0 "-l 2"
relid() { [ -n "$waslid" ] && [ $(($(ourlid) % 4)) = 0 ] && [ $(ourlid) != $waslid ]; }
i=0; while ! relid; do i=$((i+1)); [ $i -lt 3000 ] || { show failed tail -5 /tmp/err; show failed tail -30 /tmp/opensm.log; fail "our LID is $(ourlid), was $waslid"; }; sleep 0.1; done
until_true 300 met
peer=10.9.0.1
ibpings 50 56
kill $asking; wait $asking
say relid $waslid $(ourlid)
stop
say stopped
need responder unbind $addr
`

// verbsHelpers run client-server programs on both devices, which connect over the loopback interface. @G stands for the
// option that selects an end's address, if needed.
const verbsHelpers = `
modprobe ib_uverbs || fail modprobe ib_uverbs
until_true 100 test -e /dev/infiniband/uverbs1
# verbs KEY COMMAND...: the peer first. perftest's -u 20 has it wait 4 s for an acknowledgement, seven times: half a second in all, which
# is its default, is too short where a model has no core.
verbs() {
  local k=$1 near far p; shift
  near=$(echo "$*" | sed "s/@G/$gid/") far=$(echo "$*" | sed "s/@G/$gidfar/")
  $far -d mlx4_1 >/tmp/far 2>&1 &
  p=$!
  until_true 100 grep -q ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6 # it listens on port 18515
  $near -d mlx4_0 127.0.0.1 >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/far; fail "$k: $near"; }
  wait $p || { show failed cat /tmp/near /tmp/far; fail "$k, far end: $far"; }
  show $k cat /tmp/near
  say $k
}
verbsrun() {
  show devinfo ibv_devinfo -d mlx4_0
  verbs ud ibv_ud_pingpong @G -n 200 -s 512
  verbs rc ibv_rc_pingpong @G -n 200
  verbs srq ibv_srq_pingpong @G -n 20 -q 2
  verbs send ib_send_lat @G -F -u 20 -n 100
  verbs sendud ib_send_lat -c UD @G -F -n 100
  verbs write ib_write_lat @G -F -u 20 -n 100 -s 5000
  verbs read ib_read_lat @G -F -u 20 -n 100 -s 5000
}
`

// roceScript is the same on Ethernet ports, where addresses replace LIDs and no subnet manager is needed. Both ports
// are in one namespace, because mlx4_ib supports no other; the addresses are link-local, derived from the MAC address.
const roceScript = helpers + `
modprobe mlx4_en || fail modprobe mlx4_en
until_true 100 both
for n in 1 2; do # libibverbs asks the kernel for the neighbor of a datagram
  dev=$(having $n)
  sysctl -q -w net.ipv6.conf.$dev.disable_ipv6=0 net.ipv6.conf.$dev.accept_dad=0
  up
done
modprobe mlx4_ib || fail modprobe mlx4_ib
gids() { grep -q fe80 /sys/class/infiniband/mlx4_0/ports/1/gids/0 && grep -q fe80 /sys/class/infiniband/mlx4_1/ports/1/gids/0; }
until_true 100 gids
` + verbsHelpers + `
gid="-g 0" gidfar="-g 0"
show devinfo ibv_devinfo -d mlx4_0
verbs ud ibv_ud_pingpong @G -n 200 -s 512
verbs rc ibv_rc_pingpong @G -n 200
gid="-x 0" gidfar="-x 0"
verbs send ib_send_lat @G -F -u 20 -n 100
verbs sendud ib_send_lat -c UD @G -F -n 100
verbs write ib_write_lat @G -F -u 20 -n 100 -s 5000
verbs read ib_read_lat @G -F -u 20 -n 100 -s 5000
say again
need rmmod mlx4_ib
`

// ibNear and ibFar are the cards: the firmware of ibFar has no flow rules, and joins groups by table.
func ibNear(mac [6]byte) sim.Model {
	return mlx4sim.New(mlx4sim.Options{MAC: mac, Link: mlx4sim.InfiniBand})
}

func ibFar(mac [6]byte) sim.Model {
	return mlx4sim.New(mlx4sim.Options{MAC: mac, Link: mlx4sim.InfiniBand, Profile: mlx4sim.ConnectX3Pro,
		Steering: mlx4sim.MACTable})
}

// TestLabMlx4IB runs Linux's mlx4_ib and ib_ipoib, and a subnet manager, on two models.
func TestLabMlx4IB(t *testing.T) {
	guests(t)
	beside(t, "mlx4/IPoIB", func(t *testing.T) {
		programs := mlx4IB(t, ipoibScript, ibNear, ibFar)
		proven(t, "F2", "Linux mlx4_ib, ib_ipoib and Debian's opensm, on both ends",
			"880 pings over IPoIB, %d programs of libibverbs and perftest, another manager, cable, reset", programs)
		proven(t, "F3", "ours on sysfs without an IOMMU, Linux ib_ipoib and Debian's opensm as the peer",
			"250 pings over IPoIB, LID changed under traffic")
	})
	beside(t, "mlx4/IPoIB F4", mlx4IBBoot)
	beside(t, "mlx4/RoCE", func(t *testing.T) {
		programs := mlx4IB(t, roceScript, mlx4Card.model, mlx4Card.other)
		proven(t, "F2", "Linux mlx4_ib, on both ends", "%d programs of libibverbs and perftest over RoCE", programs)
	})
}

// mlx4IB returns how many of libibverbs' programs ran.
func mlx4IB(t *testing.T, script string, near, far func([6]byte) sim.Model) (programs int) {
	s := newScene(t)
	a, b := sim.Pair()
	f, g := s.serve(mlx4Card, a, near), s.serve(mlx4Card, b, far)
	keys := []string{"ud", "rc", "srq", "send", "sendud", "write", "read"}
	r, err := s.play(Machine{
		Limit: 300 * time.Second, Files: s.programs("responder"), Script: script,
		Say: func(key, _ string, _ Result) error {
			switch key {
			case "pinged", "again":
				return ibAgree(t, f, g)
			case "unplug":
				a.SetUp(false)
			case "plug":
				a.SetUp(true)
			case "stopped":
				if g.port.BusMaster() {
					return errors.New("the responder's function may still do DMA when it was stopped")
				}
			case "recovered": // mlx4_ib still rings doorbells for queues of the failed device, while it is reset and its BARs are off
				for _, v := range f.port.Violations() {
					if !strings.Contains(v, "but no object has its doorbells there") &&
						!strings.Contains(v, "while memory space is disabled") {
						return errors.New(v)
					}
				}
				f.port.ForgetViolations()
			case "fatal":
				f.model.(*mlx4sim.Model).Catastrophe(0x12345678)
			}
			return nil
		},
	}, append(keys, "devinfo", "failed")...)
	for _, key := range keys {
		if len(r[key]) > 0 {
			programs++
		}
	}
	if err != nil {
		t.Logf("packets: %+v, %+v", ibPackets(f), ibPackets(g))
		t.Fatal(err)
	}
	return programs
}

func ibPackets(f *function) (p mlx4sim.Packets) {
	f.port.Hold(func() { p = f.model.(*mlx4sim.Model).Counters().InfiniBand })
	return p
}

// ibAgree compares the counters of the two ports. The wire loses nothing, and the receive queues are longer than the
// number of packets in flight. But the guest's kernel may be sending at this moment.
func ibAgree(t *testing.T, f, g *function) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		x, y := ibPackets(f), ibPackets(g)
		if err = ibLost(x, y); err == nil {
			t.Logf("packets: %+v, %+v", x, y)
			return nil
		}
	}
	return err
}

func ibLost(x, y mlx4sim.Packets) error {
	if x.Out != y.In || y.Out != x.In {
		return fmt.Errorf("packets: %d left and %d arrived, %d left and %d arrived", x.Out, y.In, y.Out, x.In)
	}
	for _, p := range []mlx4sim.Packets{x, y} {
		if p.Bad+p.Overflow+p.BadPKey+p.BadQKey > 0 {
			return fmt.Errorf("packets were dropped: %+v", p)
		}
	}
	return nil
}
