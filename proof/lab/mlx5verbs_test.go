package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// mlx5VerbsScript runs our responder beside Linux's driver on the second function, in the namespace: for an address
// that the interface lacks, 10.9.0.3, and then for the kernel's own, $peer. Linux on the first function pings and
// floods both, connects to the kernel's address, and is pinged by it, all at the same time. A killed responder leaves
// neither rules nor addresses behind.
const mlx5VerbsScript = pairHelpers + `
modprobe ib_uverbs || fail modprobe ib_uverbs
modprobe mlx5_ib || fail modprobe mlx5_ib
uverbs() { [ -e /dev/infiniband/uverbs1 ]; }
until_true 100 uverbs
sysctl -q -w vm.nr_hugepages=64
responds() { # SETTINGS...
  local a= s
  for s in "$@"; do a="$a -set $s"; done
  : >/tmp/out
  nsenter -t $ns -n unshare -m sh -c "mount -t sysfs sys /sys && exec responder -set nic.device=$far $a" >/tmp/out 2>/tmp/err &
  pid=$!
  await_ready
}
ours=10.9.0.3
farreplies() { there awk '$1 == "Icmp:" { if (!at) for (at = NF; $at != "InEchoReps"; at--); else print $at }' /proc/net/snmp; }
# kernels N: the kernel's own traffic on the far interface: N pings each way, and a connection
kernels() {
  local all=$(($(farreplies)+$1)) n=0
  there /bin/ping -q -f -c $1 10.9.0.2 >/tmp/ping 2>&1
  while [ $(farreplies) -lt $all ]; do
    n=$((n+1)); [ $n -lt 300 ] || { show failed cat /tmp/ping; fail "the kernel's pings: $(($all-$(farreplies))) replies are missing"; }
    sleep 0.1
  done
  pings $1 56 $peer
  echo hello | there nc -l -p 5001 >/tmp/heard &
  local sink=$!
  listens there
  echo there | nc $peer 5001 >/tmp/back || fail nc
  wait $sink
  grep -q there /tmp/heard || fail "the kernel heard $(cat /tmp/heard)"
}
responds nic.driver=mlx5 respond.addresses=$ours/24 respond.udp_ports=[7,9000]
say ready $(grep '^ready' /tmp/out)
show log cat /tmp/err
show addresses there ip addr show dev $far
need /bin/ping -c 1 -W 60 $ours
for s in 16 56 64 65 256 777 1472; do pings 100 $s $ours; done
floods $ours:7 2000 1472
floods $ours:9000 500 200
say answered
kernels 200
pings 1000 56 $ours & echo=$!
kernels 1000
wait $echo || fail pings beside the kernel
say beside
show nics there sh -c 'unshare -m sh -c "mount -t sysfs sys /sys; exec responder nics"'
kill -USR1 $pid
until_true 100 grep -q '^summary' /tmp/out
show summary cat /tmp/out
kill -9 $pid; wait $pid
gone() { ! there ip addr show dev $far | grep -q $ours/; }
until_true 100 gone
kernels 100
say killed
[ -z "$icmp" ] || {
  responds nic.driver=mlx5 respond.addresses=$peer/24 # the kernel's own address
  say own $(grep '^ready' /tmp/out)
  floods $peer:7 1000 1472
  kernels 500 # its pings get their replies; those from here are ours to answer
  show own cat /tmp/out
  stop
  say stopped
}
responds respond.addresses=$ours/24 'cpu.cores=[1]' # auto
say auto $(grep '^ready' /tmp/out)
pings 50 56 $ours
stop
show final cat /tmp/out
need gone
pings 50 56 $peer
need rmmod mlx5_ib
say gone
`

// TestLabMlx5Verbs runs our driver beside Linux's on the same interface (rung F3): with firmware whose parser
// distinguishes echo requests from other ICMP, and with firmware whose parser does not.
func TestLabMlx5Verbs(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F3verbs", func(t *testing.T) { mlx5Verbs(t, mlx5sim.ConnectX6Dx, true) })
	beside(t, "mlx5/F3verbsDedicated", func(t *testing.T) { mlx5Verbs(t, mlx5sim.ConnectX5, false) })
}

func mlx5Verbs(t *testing.T, profile mlx5sim.Profile, icmp bool) {
	k := kit(t)
	dir := logDir(t)
	a, b := sim.Pair()
	f := mlx5Card.serve(t, dir, 0, a, func(mac [6]byte) sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectX5}) })
	g := mlx5Card.serve(t, dir, 1, b, func(mac [6]byte) sim.Model {
		return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: profile, UCTX: true, ICMP: icmp})
	})
	objects := func() (contexts, objects int) {
		g.port.Hold(func() { contexts, objects = g.model.(*mlx5sim.Model).UserObjects() })
		return contexts, objects
	}
	start := time.Now()
	idle, most := 0, 0
	script := "module=mlx5_core peer=10.9.0.1\n" + mlx5VerbsScript
	if icmp {
		script = "icmp=1 " + script
	}
	r, err := k.Run(t.Context(), Machine{
		Limit: 600 * time.Second, Dir: dir, Sockets: []string{f.socket, g.socket},
		Files:  map[string][]byte{"responder": build(t, dir, "github.com/rebound-nic/rebound/cmd/responder"), "flood": build(t, dir, "github.com/rebound-nic/rebound/proof/lab/flood")},
		Script: script,
		Say: func(key, text string, r Result) error {
			t.Logf("%6.1fs %s %s", time.Since(start).Seconds(), key, text)
			switch key {
			case "ready", "own", "auto":
				if !strings.Contains(text, "driver=mlx5") || !strings.Contains(text, "via=verbs") {
					return fmt.Errorf("the responder is not beside the kernel's driver: %s", text)
				}
				contexts, n := objects()
				most = max(most, n)
				if n == 0 {
					return fmt.Errorf("the responder has no object on the card, in %d contexts", contexts)
				}
				idle = contexts - 1
			case "killed", "stopped":
				for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
					contexts, n := objects()
					if contexts == idle && n == 0 {
						break
					}
					if time.Now().After(end) {
						return fmt.Errorf("the responder left %d objects in %d contexts, there were %d before", n, contexts, idle)
					}
				}
			}
			return nil
		},
	})
	for _, key := range []string{"log", "addresses", "nics", "summary", "own", "final", "dmesg", "failed"} {
		for _, line := range r[key] {
			t.Log(key+":", line)
		}
	}
	f.clean(t)
	g.clean(t)
	if err != nil {
		t.Fatal(err)
	}
	proven(t, "F3", "ours beside Linux mlx5_core, Linux mlx5_core as the peer", "pings, UDP and the kernel's own traffic on one interface; %d objects on the card", most)
}
