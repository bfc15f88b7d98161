package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// kernelHelpers run the responder in several modes, and report "NAME answered" for each, or the reason why it did not
// start.
const kernelHelpers = helpers + `
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
mount -t bpf bpf /sys/fs/bpf || fail mount a BPF file system
namespace
restarts=0 # of a responder that answers no ping, or of a bench that gets no reply
need there ip link set lo up
bdf() { d=$(readlink -f $1/device); case $(basename $d) in virtio*) d=$(dirname $d);; esac; basename $d; }
# start NAME COMMAND...: starts the responder, and waits until it is ready. It returns 1 if it does not start.
start() {
  local name=$1 i=0; shift
  : >/tmp/out
  "$@" >/tmp/out 2>/tmp/err &
  pid=$!
  while ! grep -q '^ready ' /tmp/out; do
    kill -0 $pid 2>/dev/null || return 1
    i=$((i+1)); [ $i -lt 1200 ] || { show failed cat /tmp/err; fail "$name is not ready"; }; sleep 0.1; done
}
# answered COUNT: whether one of so many pings is answered
answered() {
  local n=$1
  until /bin/ping -q -c 1 -W 1 $peer >/dev/null 2>&1; do n=$((n-1)); [ $n -gt 0 ] || return 1; sleep 0.1; done
}
# way NAME here|there|COMMAND ARGUMENTS...: starts the responder, pings it from $dev, and ends it
way() {
  local name=$1 in=$2 again=$restarts; shift 2
  case $in in here) in= ;; there) in="nsenter -t $ns -n" ;; esac # or a command
  while :; do
    start "$name" $in polls responder -config /lab/config.toml -set respond.addresses=[\"$peer/24\"] "$@" ||
      { say refused "$name: $(tail -n 1 /tmp/err)"; return; }
    ip neigh flush dev $dev
    up
    [ $again = 0 ] || { answered 6 && break; say silent "$name"; again=$((again-1)); stop; continue; }
    answered 300 && break # attaching a program may reset the card
    show failed cat /tmp/err; fail "$name answers no ping"
  done
  for s in 16 777 1472; do pings 20 $s; done
  stop
  say way "$name"
}
probes() { # NAME ARGUMENTS...: the bench reaches Linux in the namespace
  local name=$1 again=$restarts code within; shift
  while :; do
    [ $again = 0 ] && within= || within="timeout -s KILL 20"
    code=0
    $within bench run "$@" -target 10.9.0.5 -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/$name >/tmp/need 2>/tmp/err || code=$?
    [ -n "$within" ] && [ $code = 137 ] || break
    say silent "bench $name"; again=$((again-1))
  done
  [ $code = 0 ] || { say refused "bench $name: $(tail -n 1 /tmp/err)"; return; }
  grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "bench by $name lost replies"; }
  say way "bench $name"
}
# interfaces NAME: the ways over a Linux driver: ours on $far in the namespace, Linux on $dev
interfaces() {
  need ip link set $far netns $ns
  need there ip addr add 10.9.0.5/24 dev $far
  need there ip link set $far up
  # One socket of AF_XDP gets everything. veth has one queue anyway.
  there ethtool -L $far combined 1 >/dev/null 2>&1
  ethtool -L $dev combined 1 >/dev/null 2>&1
  need ip addr add 10.9.0.2/24 dev $dev
  up
  pings 20 56 10.9.0.5
  for d in xdp afxdp afpacket; do way "$d $1" there -set nic.driver=$d -set nic.device=$far; done
  for d in afxdp afpacket; do probes "$d-$1" -iface $dev -driver $d; done

  need there ip addr flush dev $far
  need there ip link set $far netns 1
  need ip addr flush dev $dev
}
`

// vethScript has the modes over veth interfaces.
const vethScript = `
peer=10.9.0.1
modprobe veth || fail modprobe veth
need ip link add type veth
dev=veth0 far=veth1
need ip link set veth1 up
interfaces veth
need ip link set $far netns $ns
need there ip link set $far up
need ip addr add 10.9.0.2/24 dev $dev
way "xdp STAMP" there -set nic.driver=xdp -set nic.device=$far -set respond.stamp_ports=[862]
need ip link set $dev mtu 9000
need there ip link set $far mtu 9000
way "xdp MTU 9000" there -set nic.driver=xdp -set nic.device=$far
need ip link del veth0
`

// behindScript is for a machine with an IOMMU: interfaces of veth and of ixgbe, and then each card by VFIO.
const behindScript = kernelHelpers + vethScript + `
ends() { [ -n "$(having $near)" ] && [ -n "$(having $far)" ]; }
card() { # DRIVER MODULE NEAR FAR: the last digit of each function's MAC address
  near=$3 far=$4
  modprobe $2 || fail modprobe $2
  until_true 100 ends
  dev=$(having $near) addr=$(bdf /sys/class/net/$(having $far))
  if [ $1 = ixgbe ]; then
    far=$(having $far)
    interfaces ixgbe
  fi
  need ip link set $(basename /sys/bus/pci/devices/$addr/net/*) down
  need responder bind $addr
  need ip addr add 10.9.0.2/24 dev $dev
  way "$1 vfio" here -set nic.driver=$1 -set nic.device=$addr
  need rmmod $2
}
cards
# Debian's kernel has no driver for EFA: the responder's own test sends to itself.
need responder bind $efa
if responder probe -stage loop -o /tmp/probe $efa >/tmp/need 2>&1; then say way "efa vfio"; else say refused "efa vfio: $(tail -n 1 /tmp/need)"; show failed cat /tmp/need; fi
`

// sharedScript runs the responder beside Linux's driver of a card, in the namespace.
const sharedScript = kernelHelpers + `
peer=10.9.0.1
cat >/tmp/far <<END
#!/bin/sh
exec nsenter -t $ns -n unshare -m sh -c 'mount -t sysfs sys /sys; exec "\$@"' sh "\$@"
END
chmod +x /tmp/far
modprobe ib_uverbs || fail modprobe ib_uverbs
ready() { [ -n "$(having $near)" ] && [ -n "$(having $far)" ] && [ -e /dev/infiniband/$(basename /sys/class/net/$(having $far)/device/infiniband_verbs/*) ]; }
# shared NAME CARD NEAR FAR: the last digit of each function's MAC address
shared() {
  near=$3 far=$4
  until_true 300 ready
  dev=$(having $near) far=$(having $far)
  need ip link set $far netns $ns
  need there ip link set $far up
  need ip addr add 10.9.0.2/24 dev $dev
  up
  way "$1" /tmp/far -set nic.driver=$2 -set nic.device=$far
  need there ip link set $far netns 1
  need ip addr flush dev $dev
  need ip link set $dev down
}
need modprobe mlx4_core log_num_mgm_entry_size=-1
need modprobe -a mlx4_en mlx4_ib
shared "mlx4 beside" mlx4 5 6
need rmmod mlx4_ib
need rmmod mlx4_en
need rmmod mlx4_core
need modprobe mlx4_core log_num_mgm_entry_size=-1 enable_64b_cqe_eqe=0
need modprobe -a mlx4_en mlx4_ib
shared "mlx4 beside, version 3" mlx4 5 6
need modprobe -a mlx5_core mlx5_ib
shared "mlx5 beside, DEVX" mlx5 1 2
shared "mlx5 beside, raw packets" mlx5 3 4
`

// physicalScript is for a machine without an IOMMU: ixgbe through sysfs, and through VFIO's no-IOMMU mode. If $over is
// set, the modes over its interface come first.
const physicalScript = `
peer=10.9.0.1
modprobe ixgbe || fail modprobe ixgbe
until_true 100 both
dev=$(having 1) far=$(having 2) addr=$(bdf /sys/class/net/$(having 2))
[ -z "$over" ] || interfaces ixgbe
need ip link set $far down
need ip addr add 10.9.0.2/24 dev $dev
need responder bind -no-driver $addr
way "ixgbe sysfs" here -set nic.driver=ixgbe -set nic.device=$addr -set nic.unsafe_no_iommu=true
need responder unbind $addr
until_true 100 both
if echo Y >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode; then
  need ip link set $(having 2) down
  need responder bind $addr
  way "ixgbe vfio without IOMMU" here -set nic.driver=ixgbe -set nic.device=$addr -set nic.unsafe_no_iommu=true
  need responder unbind $addr
else
  say refused "ixgbe vfio without IOMMU: the kernel has no VFIO_NOIOMMU"
fi
`

// kernels are the Debian releases, and one of Ubuntu, whose kernels are tested in addition to the lab's own, by suite,
// with the modes that do not work there: part of the reason by mode.
var kernels = []struct {
	suite, version string
	refused        map[string]string
}{
	{"bullseye", "5.10", map[string]string{"xdp STAMP": "STAMP in the kernel takes Linux 6.1 or later"}},
	{ubuntu, "5.15", map[string]string{"xdp STAMP": "STAMP in the kernel takes Linux 6.1 or later"}},
	{"bookworm", "6.1", nil},
	{"trixie", "6.12", nil},
}

// ubuntu is Ubuntu 22.04's suite. Its kernel has VFIO_NOIOMMU, unlike Debian's. Its ixgbe leaves the queue's interrupt
// enabled while it gives the queue a zero-copy pool. If NAPI polls then, it writes RDT before RXDCTL.ENABLE reads 1,
// which the card ignores: the queue receives nothing until the next reset (seen in about one of four starts of afxdp).
// A restarted responder or bench is such a reset, so this kernel has some. Later kernels disable the interrupt
// (ixgbe_irq_disable_single).
const ubuntu = "jammy"

// overInterfaces are the modes over a kernel's interface.
var overInterfaces = func() []string {
	ways := []string{"xdp STAMP", "xdp MTU 9000"}
	for _, i := range []string{"veth", "ixgbe"} {
		ways = append(ways, "xdp "+i, "afxdp "+i, "afpacket "+i, "bench afxdp-"+i, "bench afpacket-"+i)
	}
	return ways
}()

// TestLabKernels runs each of our drivers on older kernels. Those between the oldest and the newest run what differs
// from kernel to kernel most, our drivers over interfaces and VFIO.
func TestLabKernels(t *testing.T) {
	guests(t)
	oldest, newest := kernels[0].suite, kernels[len(kernels)-1].suite
	for _, r := range kernels {
		// With the lab's IOMMU, Ubuntu's kernel fails to set up MSI-X (a warning in msix_capability_init). Its package
		// has no RDMA modules.
		if r.suite != ubuntu {
			beside(t, "kernel/"+r.version, func(t *testing.T) { kernelWays(t, r.suite, r.refused) })
		}
		if r.suite == oldest || r.suite == newest {
			beside(t, "kernel/"+r.version+" beside its drivers", func(t *testing.T) { sharedWays(t, r.suite) })
		}
		if r.suite == oldest || r.suite == ubuntu {
			beside(t, "kernel/"+r.version+" without IOMMU", func(t *testing.T) { physicalWays(t, r.suite, r.refused) })
		}
	}
}

func kernelWays(t *testing.T, suite string, refused map[string]string) {
	s := newScene(t)
	ways := append([]string{"efa vfio"}, overInterfaces...)
	var script strings.Builder
	script.WriteString("cards() {\n")
	for _, c := range running(catalogue.Smoke) {
		n := len(s.functions)
		s.pair(c, c.model, c.model)
		ways = append(ways, c.name+" vfio")
		fmt.Fprintf(&script, "card %s %s %x %x\n", c.name, c.module, n+1, n+2)
	}
	_, wire := sim.Pair()
	s.serve(efaCard, wire, efaModel(efasim.EFA1))
	fmt.Fprintf(&script, "}\nefa=$(basename $(dirname $(grep -l 0xefa /sys/bus/pci/devices/*/device)))\n")
	s.runWays(suite, Machine{IOMMU: true, Script: script.String() + behindScript}, ways, refused)
}

// sharedWays are ours beside Linux's drivers: mlx5 by DEVX and by queue pairs for raw packets, and mlx4 with both
// versions of its interface. Version 3 is that of a card without completions of 64 bytes.
func sharedWays(t *testing.T, suite string) {
	s := newScene(t)
	s.pair(mlx5Card, connectX5, connectX5)
	s.pair(mlx5Card, connectX(mlx5sim.ConnectX4), func(mac [6]byte) sim.Model {
		return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectX5, NoUCTX: true})
	})
	s.pair(mlx4Card, mlx4Card.model, mlx4Card.model)
	ways := []string{"mlx5 beside, DEVX", "mlx5 beside, raw packets", "mlx4 beside", "mlx4 beside, version 3"}
	s.runWays(suite, Machine{Script: sharedScript}, ways, nil)
}

func physicalWays(t *testing.T, suite string, refused map[string]string) {
	s := newScene(t)
	ways, script := []string{"ixgbe sysfs", "ixgbe vfio without IOMMU"}, kernelHelpers
	if suite == ubuntu {
		ways, script = append(ways, overInterfaces...), kernelHelpers+vethScript+"over=1 restarts=10\n"
	} else {
		refused = map[string]string{"ixgbe vfio without IOMMU": "VFIO_NOIOMMU"} // Debian builds its kernels so
	}
	s.pair(ixgbeCard, ixgbeCard.model, ixgbeCard.model)
	s.runWays(suite, Machine{Script: script + physicalScript}, ways, refused)
}

// runWays runs the machine with the kernel of a release. Each of the modes has to work, except for those that are
// rejected with a reason.
func (s *scene) runWays(suite string, m Machine, ways []string, refused map[string]string) {
	k, err := s.kit.withKernel(s.Context(), suite)
	available(s, err)
	s.kit = k
	for _, f := range s.functions {
		f.foreign = true // an old driver may cause warnings that a later version does not
	}
	m.Limit, m.OneCPU, m.Files = 4*time.Minute, true, s.programs("responder", "bench")
	version, got := "", map[string]string{} // reason for failure by mode; "" if it worked
	m.Say = func(key, text string, _ Result) error {
		switch key {
		case "boot":
			version = text
			clear(got)
		case "way":
			got[text] = ""
		case "refused":
			way, why, _ := strings.Cut(text, ": ")
			got[way] = why
		}
		return nil
	}
	_, err = s.play(m, "failed")
	must.OK(s, err)
	for _, way := range ways {
		why, tried := got[way]
		switch want := refused[way]; {
		case !tried:
			s.Errorf("%s was not tried", way)
		case want == "" && why != "":
			s.Errorf("%s: %s", way, why)
		case want != "" && !strings.Contains(why, want):
			s.Errorf("%s: refused with %q, want %q", way, why, want)
		}
	}
	proven(s.T, "F3", "ours on Linux "+version, "%s", strings.Join(
		slices.DeleteFunc(ways, func(w string) bool { return refused[w] != "" }), ", "))
}
