package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// besideHelpers are for drivers beside Linux's on the second function, in the namespace, whose module is
// ${driver}_core: our responder and our bench run there, and the kernel's own traffic at the same time.
const besideHelpers = pairHelpers + `
modprobe ib_uverbs || fail modprobe ib_uverbs
modprobe ${driver}_ib || fail modprobe ${driver}_ib
uverbs() { [ -e /dev/infiniband/uverbs1 ]; }
until_true 100 uverbs
sysctl -q -w vm.nr_hugepages=64
started() { # SETTINGS..., with $rights
  local a= s
  for s in "$@"; do a="$a -set $s"; done
  : >/tmp/out
  nsenter -t $ns -n unshare -m sh -c "mount -t sysfs sys /sys && exec polls $rights responder -v -set nic.device=$far $a" >/tmp/out 2>/tmp/err &
  pid=$!
}
responds() { started "$@"; await_ready; }
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
  until_true 100 there grep -q ':1389 .* 0A ' /proc/net/tcp /proc/net/tcp6
  echo there | timeout 300 nc $peer 5001 >/tmp/back || fail nc
  wait $sink
  grep -q there /tmp/heard || fail "the kernel heard $(cat /tmp/heard)"
}
# mixes: $frames datagrams to the responder, beside the kernel's own traffic
mixes() {
  flood $ours:7 $frames 300 >/tmp/mixed 2>&1 &
  local mixed=$! rounds=0
  while kill -0 $mixed 2>/dev/null; do kernels 100; rounds=$((rounds+1)); done
  wait $mixed || { show failed cat /tmp/mixed /tmp/err; show failed counters; fail "$frames datagrams beside the kernel's traffic"; }
  show mixed cat /tmp/mixed
  show mixed echo "beside it $rounds times 200 pings of the kernel and a connection"
}
gone() { ! there ip addr show dev $far | grep -q $ours/; }
farside() { nsenter -t $ns -n unshare -m sh -c 'mount -t sysfs sys /sys; exec "$@"' sh "$@"; }
# kills N SETTINGS...: N responders, each killed at a random moment while it starts or answers
kills() {
  local n=0 all=$1 a= s; shift
  for s in "$@"; do a="$a -set $s"; done
  while [ $n -lt $all ]; do
    nsenter -t $ns -n unshare -m sh -c "mount -t sysfs sys /sys && exec polls responder -v -set nic.device=$far $a" >/tmp/out 2>/tmp/err &
    pid=$!
    sleep $((RANDOM%3)).$((RANDOM%10))$((RANDOM%10))
    kill -9 $pid; wait $pid
    until_true 100 gone
    n=$((n+1))
  done
}
echoes() { # our responder here, in the kernel, for the bench
  respond -set nic.driver=xdp -set nic.generic_xdp=true -set nic.device=$dev -set respond.addresses=10.9.0.4/24 -set "respond.stamp_ports=[862]"
}
benches() { # NAME COUNT ARGUMENTS...
  local name=$1 count=$2; shift 2
  farside polls bench run -iface $far -driver $driver "$@" -count $count -runs 1 -timeout 60s -warmup 0s -self-test 0s -out /tmp/$name >/tmp/bench 2>/tmp/benched &
  local bench=$!
  say probing $name
  kernels 50
  wait $bench || { show failed cat /tmp/bench /tmp/benched; fail "the bench beside the kernel: $name"; }
  show bench grep 'round trip\|sent' /tmp/bench
  grep -q "received $count" /tmp/bench || { show failed cat /tmp/bench /tmp/benched; fail "the bench lost replies of $name"; }
  grep -q '(sim)' /tmp/bench || fail "the report takes the model for silicon"
  grep -q "beside the kernel's driver ${driver}_core" /tmp/$name/report.json || fail "the report does not say how the card is used"
  say measured $name
}
`

// mlx5VerbsScript runs our responder beside Linux's driver on the second function, in the namespace: for an address
// that the interface lacks, 10.9.0.3, and then for the kernel's own, $peer. Linux on the first function pings and
// floods both, connects to the kernel's address, and is pinged by it, all at the same time. A killed responder leaves
// neither rules nor addresses behind. Then our bench uses the second function in the same way.
const mlx5VerbsScript = besideHelpers + `
say idle
responds nic.driver=mlx5 respond.addresses=$ours/24 respond.udp_ports=[7,9000]
say ready $(grep '^ready' /tmp/out)
show log cat /tmp/err
show addresses there ip addr show dev $far
need /bin/ping -c 1 -W 60 $ours
for s in 16 56 64 65 256 777 1472; do pings 30 $s $ours; done
floods $ours:7 500 1472
floods $ours:9000 100 200
show nics there sh -c 'unshare -m sh -c "mount -t sysfs sys /sys; exec responder nics"'
say answered
kernels 200
pings 300 56 $ours & echo=$!
kernels 300
wait $echo || fail pings beside the kernel
mixes
say beside
kill -USR1 $pid
until_true 100 grep -q '^summary' /tmp/out
show summary cat /tmp/out
kill -9 $pid; wait $pid
until_true 100 gone
kernels 100
say killed
kills $kills nic.driver=mlx5 respond.addresses=$ours/24
kernels 100
say killed $kills
[ -z "$icmp" ] || {
  responds nic.driver=mlx5 respond.addresses=$peer/24 # the kernel's own address
  say own $(grep '^ready' /tmp/out)
  floods $peer:7 300 1472
  kernels 200 # its pings get their replies; those from here are ours to answer
  show own cat /tmp/out
  stop
  say stopped
}
responds respond.addresses=$ours/24 'cpu.cores=[0]' # auto
say auto $(grep '^ready' /tmp/out)
pings 50 56 $ours
stop
show final cat /tmp/out
need gone
pings 50 56 $peer
[ -z "$brief" ] || { need rmmod mlx5_ib; say gone; return; }
# As a container's user: root without all but CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_NET_RAW and CAP_IPC_LOCK, and nobody with the last two.
for rights in "rights 0 6,7,8,13,14" "rights 65534 13,14"; do
  responds nic.driver=mlx5 respond.addresses=$peer/24 respond.udp_ports=[7]
  say own $(grep '^ready' /tmp/out)
  show confined grep msg=confined /tmp/err
  floods $peer:7 200 1472
  stop
  say stopped
done
[ -n "$icmp" ] || { # with user contexts the card itself refuses the send queue, which its model calls an error of the driver
  rights="rights 65534 14"
  started nic.driver=mlx5 respond.addresses=$peer/24
  ! wait $pid || fail "a responder without CAP_NET_RAW ended well"
  grep -q CAP_NET_RAW /tmp/err || { show failed cat /tmp/err; fail "the responder does not say that it lacks CAP_NET_RAW"; }
  show lacking grep CAP_NET_RAW /tmp/err
}
rights=
# The bench beside Linux's driver on the far interface: Linux and our responder here answer it, while the kernel's own traffic
# continues.
echoes
benches udp 100 -target 10.9.0.4 -proto udp -port 7 -closed
benches stamp 50 -target 10.9.0.4 -proto stamp -size 1514 -rate 100
if [ -n "$icmp" ]; then
  benches icmp 100 -target 10.9.0.2 -closed # Linux answers
else
  ! farside bench run -iface $far -driver mlx5 -target 10.9.0.2 -count 1 -out /tmp/refused >/tmp/bench 2>&1 && grep -q 'probe with UDP or STAMP' /tmp/bench ||
    { show failed cat /tmp/bench; fail "ICMP without a parser is not refused"; }
fi
targets="-target udp:10.9.0.4 -target stamp:10.9.0.4"
[ -z "$icmp" ] || targets="$targets -target 10.9.0.2"
# not by a function, whose shell would get the signal below
nsenter -t $ns -n unshare -m sh -c 'mount -t sysfs sys /sys; exec "$@"' sh /lab/watch -iface $far -driver mlx5 $targets -rate 20 -timeout 10s -listen 127.0.0.1:9470 >/tmp/watch 2>&1 &
watch=$!
watched() {
  kill -0 $watch || { show failed cat /tmp/watch; fail the watch ended; }
  there wget -q -O /tmp/metrics http://127.0.0.1:9470/metrics &&
    awk '/^rebound_target_up/ && $NF == 1 { up++ } /^rebound_lost_total/ { lost += $NF } /^rebound_probes_total/ && $NF >= 20 { sent++ }
      END { exit !(up == n && sent >= n && !lost) }' n=$(echo $targets | grep -o -- -target | wc -l) /tmp/metrics
}
until_true 600 watched
say watching
kernels 50
need watched
kill -TERM $watch
wait $watch || { show failed cat /tmp/watch; fail the watch did not end well; }
stop
say stopped
need rmmod mlx5_ib
say gone
`

// datagrams reports a summary in which the responder did not answer exactly n datagrams: it answered one twice, or one
// of the kernel's. (The number of pings varies, for a guest repeats them.)
func (r Result) datagrams(n int) error {
	if !slices.ContainsFunc(r["summary"], func(line string) bool {
		return slices.Equal(strings.Fields(line), []string{"udpv4", latency.FormatCount(n)})
	}) {
		return fmt.Errorf("the responder did not answer %d datagrams: %q", n, r["summary"])
	}
	return nil
}

// TestLabMlx5Verbs runs our driver beside Linux's on the same interface (rung F3): with firmware whose parser
// distinguishes echo requests from other ICMP, with firmware whose parser does not, and with firmware without user
// contexts, for which Linux makes queue pairs for raw packets.
func TestLabMlx5Verbs(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F3verbs", func(t *testing.T) {
		mlx5Verbs(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	})
	beside(t, "mlx5/F3verbsDedicated", func(t *testing.T) { mlx5Verbs(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5}) })
	beside(t, "mlx5/F3verbsRawPackets", func(t *testing.T) {
		mlx5Verbs(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5, NoUCTX: true})
	})
}

func mlx5Verbs(t *testing.T, o mlx5sim.Options) {
	s := newScene(t)
	peer := mlx5sim.ConnectX5
	if o.NoUCTX { // with the recorded firmware, whose flow tables cannot be chained
		peer = mlx5sim.ConnectX4
	}
	_, g := s.pair(mlx5Card, connectX(peer), func(mac [6]byte) sim.Model {
		o.MAC = mac
		return mlx5sim.New(o)
	})
	// The card's user contexts, and what it has for them: without contexts, queues.
	objects := func() (contexts, objects int) {
		g.port.Hold(func() {
			m := g.model.(*mlx5sim.Model)
			if contexts, objects = m.UserObjects(); o.NoUCTX {
				objects = m.Queues()
			}
		})
		return contexts, objects
	}
	how := "by queue pairs for raw packets, because the firmware has no user contexts"
	if !o.NoUCTX {
		how = "by DEVX"
	}
	idle, base, most := 0, 0, 0
	kills, frames := fromEnv("REBOUND_LAB_KILLS", 3), fromEnv("REBOUND_LAB_FRAMES", 500)
	script := fmt.Sprintf("module=mlx5_core driver=mlx5 peer=10.9.0.1 kills=%d frames=%d\n", kills,
		frames) + mlx5VerbsScript
	if o.ICMP {
		script = "icmp=1 " + script
	} else if !o.NoUCTX {
		script = "brief=1 " + script // the others show the rest
	}
	_, err := s.play(Machine{
		OneCPU: true,
		Limit:  600*time.Second + time.Duration(kills)*3*time.Second + time.Duration(frames)*5*time.Millisecond,
		Files:  s.programs("responder", "flood", "bench", "watch", "rights"), Script: script,
		Say: func(key, text string, r Result) error {
			switch key {
			case "idle":
				idle, base = objects()
			case "ready", "own", "auto":
				if !strings.Contains(text, "driver=mlx5") || !strings.Contains(text, "via=verbs") {
					return fmt.Errorf("the responder is not beside the kernel's driver: %s", text)
				}
				contexts, n := objects()
				most = max(most, n-base)
				if n <= base {
					return fmt.Errorf("the responder has no object on the card, in %d contexts", contexts)
				}
			case "answered": // nics has shown how
				if all := strings.Join(r["nics"], "\n"); !strings.Contains(all, how) {
					return fmt.Errorf("rebound-responder nics does not say %q", how)
				} else if o.NoUCTX && !strings.Contains(all, "nor can it chain flow tables") {
					return fmt.Errorf("rebound-responder nics does not refuse the recorded firmware beside Linux's driver")
				}
			case "probing", "watching": // objects come while the guest runs
				for end := time.Now().Add(10 * patience); ; time.Sleep(10 * time.Millisecond) {
					if _, n := objects(); n > base {
						break
					}
					if time.Now().After(end) {
						return fmt.Errorf("the bench has no object on the card")
					}
				}
			case "measured", "killed", "stopped":
				if key == "killed" {
					if err := r.datagrams(600 + frames); err != nil {
						return err
					}
				}
				var contexts, n int
				if !await.Holds(func() bool { contexts, n = objects(); return contexts == idle && n == base }) {
					return fmt.Errorf("the card has %d objects and %d contexts, before the responder there were %d and %d", n, contexts, base, idle)
				}
			}
			return nil
		},
	}, "log", "addresses", "nics", "mixed", "summary", "own", "confined", "lacking", "final", "bench", "failed")
	must.OK(t, err)
	proven(t, "F3", "ours beside Linux mlx5_core, Linux mlx5_core as the peer",
		"responder, bench and watch, and the kernel's own traffic on one interface; %d objects on the card; %s", most,
		how)
}
