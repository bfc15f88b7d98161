package lab

import (
	"fmt"
	"testing"
	"time"
)

// ibF3Script runs our responder on an InfiniBand port: Debian's opensm on the other port assigns its LID and its
// groups, and ib_ipoib pings it in both families, with both inline data and data segments. Then it is killed and starts
// again. At the end our bench pings Linux, which it finds by ARP and a path record from opensm. opensm sweeps every
// second and waits 2 s for a reply, because with 200 ms it considers a port gone when this machine is busy.
const ibF3Script = ibModules + `
sysctl -q -w vm.nr_hugepages=64
sysctl -q -w net.core.rmem_default=8388608 # IPoIB's buffers have pages of their own, and a socket counts those
modprobe vfio-pci || fail modprobe vfio-pci
ports() { [ -e $ib/mlx4_0/ports/1/state ] && [ -e /sys/class/net/ib0 ] && [ -e /sys/class/net/ib1 ]; }
until_true 300 ports
addr=$(basename $(readlink /sys/class/net/ib1/device))
need responder bind $addr
show nics responder nics
say bound $addr
manage mlx4_0 "-s 1"
for c in all default ib0; do sysctl -q -w net.ipv6.conf.$c.disable_ipv6=0 net.ipv6.conf.$c.accept_dad=0; done
need ip addr add 10.9.0.2/24 dev ib0
need ip addr add fd00::2/64 dev ib0
dev=ib0
in=polls
start() {
  respond -config /lab/config.toml -set nic.driver=mlx4 -set nic.device=$addr -set 'respond.addresses=["10.9.0.1/24", "fd00::1/64"]' \
    -set log.level=debug
  need ip link set ib0 up
  up
  met
}
answer() { /bin/ping -c 1 -W 1 10.9.0.1 && /bin/ping -6 -c 1 -W 1 fd00::1; }
met() {
  local n=1200
  while ! answer >/dev/null 2>&1; do
    n=$((n-1)); [ $n -gt 0 ] || { show failed cat /tmp/err; show failed tail -20 /tmp/opensm.log; fail nobody answers; }
    sleep 0.1
  done
}
dropped() { cat /sys/class/net/ib0/statistics/tx_dropped; }
# ibpings COUNT SIZE: every one is answered, but for what IPoIB says that it dropped: it keeps three packets while it asks for a path.
# On a machine so busy that opensm takes a port for gone, groups and paths are made again meanwhile: up to three times in all, told.
ibpings() {
  local before was got n i
  for n in 1 2 3; do
    before=$(dropped) was=$(echoed) i=0
    /bin/ping -q -f -c $1 -s $2 $peer >/tmp/ping 2>&1
    while got=$(($(echoed) - was)); [ $((got + $(dropped) - before)) -lt $1 ] && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.1; done
    [ $i = 100 ] || [ $got -le $(($1 / 2)) ] || return 0
    say lost "$(($(dropped) - before)) dropped, $got answered; $(grep transmitted /tmp/ping)"
    met
  done
  kill -INT $pid; wait $pid
  for f in /tmp/err /tmp/out /proc/net/snmp /tmp/ping; do show failed cat $f; done
  show failed tail -30 /tmp/opensm.log
  fail "$1 pings of $2 bytes to $peer, $(($(dropped) - before)) dropped"
}
traffic() {
  for peer in 10.9.0.1 fd00::1; do
    for s in $2; do ibpings $1 $s; done
  done
}
start
say ready $(grep '^ready' /tmp/out)
traffic 30 "16 56 148 149 777 1996"
flood 10.9.0.1:7 300 1472 >/tmp/need 2>&1 || { show failed cat /tmp/need /tmp/err; fail flood; }
show log grep -h 'IPoIB\|InfiniBand' /tmp/err
say answered
kill -9 $pid; wait $pid
say killed
start
traffic 20 "56 1472"
say again
stop
say stopped
need bench run -iface $addr -driver mlx4 -source 10.9.0.3 -target 10.9.0.2 -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/own
grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "the bench on vfio-pci lost replies"; }
grep -q '(sim)' /tmp/need || { show failed cat /tmp/need; fail "the report takes the model for silicon"; }
show bench cat /tmp/need
say measured
`

// TestLabMlx4IBF3 is rung F3 of ConnectX-3 on InfiniBand.
func TestLabMlx4IBF3(t *testing.T) {
	guests(t)
	beside(t, "mlx4/IPoIB F3", func(t *testing.T) {
		s := newScene(t)
		theirs, ours := s.pair(mlx4Card, ibNear, ibFar)
		_, err := s.play(Machine{
			Limit: 200 * time.Second, OneCPU: true, IOMMU: true, Script: ibF3Script,
			Files: s.programs("flood", "responder", "bench"),
			Say: func(key, _ string, _ Result) error {
				if (key == "killed" || key == "stopped" || key == "measured") && ours.port.BusMaster() {
					return fmt.Errorf("the responder's function may still do DMA when it was %s", key)
				}
				if key == "answered" {
					// packets of the subnet manager to a port that was down are not ours
					t.Logf("packets: %+v, %+v", ibPackets(theirs), ibPackets(ours))
				}
				return nil
			},
		}, "failed", "nics", "log", "bench")
		if err != nil {
			t.Logf("packets: %+v, %+v", ibPackets(theirs), ibPackets(ours))
			t.Fatal(err)
		}
		proven(t, "F3", "ours on vfio-pci, Linux ib_ipoib and Debian's opensm as the peer",
			"pings of IPv4 and IPv6, a flood, kill -9 and again, bench")
	})
}
