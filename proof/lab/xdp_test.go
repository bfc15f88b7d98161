package lab

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// xdpScript has Linux's driver on both functions, and our responder's XDP program in the one in a network namespace;
// the first function has the MAC of package corpus. $module is set before it, and $channels to a number that the driver
// supports with XDP.
const xdpScript = helpers + `
mount -t bpf bpf /sys/fs/bpf || fail mount a BPF file system
modprobe $module || fail modprobe $module
until_true 100 both
far=$(having 1) dev=$(having 2)
namespace
need ip link set $far netns $ns
need there ip addr add 10.9.0.5/24 dev $far
need there ip link set $far up
need ip addr add 10.9.0.2/24 dev $dev
need ip link set $dev promisc on
up
start() { # NAMESPACE-COMMAND DEVICE NAME SETTINGS...
  local in=$1 device=$2 name=$3 a=; shift 3
  [ $in = here ] && in= || in="nsenter -t $ns -n" # no function, which would fork a process
  for s in "$@"; do a="$a -set $s"; done
  respond -config /lab/config.toml -set nic.driver=xdp -set nic.device=$device $a
  grep 'msg="*device' /tmp/err >/tmp/$name
  until_true 100 grep -q 1 /sys/class/net/$dev/carrier # attaching a program may reset the card
}
peer=10.9.0.1
if [ -n "$refused" ]; then # with all of its channels the driver has no queues left to send by
  start there $far all respond.addresses=$peer/24
  show all cat /tmp/all
  stop
fi
need there ethtool -L $far combined $channels
need ethtool -L $dev combined 1 # what comes stays in order
there ethtool -K $far rxvlan off >/dev/null 2>&1
ethtool -K $dev rxvlan off >/dev/null 2>&1
until_true 100 grep -q 1 /sys/class/net/$dev/carrier

start there $far plain respond.addresses=$peer/24 nic.pin=lab respond.stamp_ports=[862]
show plain cat /tmp/plain
say attached
for s in 16 56 64 65 256 777 1472; do pings 100 $s; done
floods $peer:7 1000 1472
pings 100 777 10.9.0.5 # whose kernel answers for its own address
say answered
# The bench asks for this host's clock, which nobody sets here.
need bench run -target $peer -proto stamp -port 862 -transport socket -closed -count 20 -timeout 60s -warmup 0s -self-test 0s -out /tmp/oneway
show clock grep why_not /tmp/oneway/report.json
say clocked
if grep -q "receive timestamps come from the card" /tmp/plain; then # two readings of the card's clock, a second apart, relate it to the kernel's
  n=0
  until grep -q '^delivery' /tmp/out; do
    n=$((n+1)); [ $n -lt 40 ] || { show failed cat /tmp/out; fail "no reply has a time of delivery"; }
    pings 100 56
    sleep 0.5
    kill -USR1 $pid
    sleep 0.1
  done
  show delivery grep -E '^(ns|turnaround|delivery) ' /tmp/out
fi
show running there responder status -json lab
say running
kill -9 $pid; wait $pid
pings 100 56
show pinned there responder status -json lab
say pinned
need there responder unpin lab
show unpinned there ip link show $far
say unpinned

if [ -n "$jumbo" ]; then # frames over several buffers
  need there ip link set $far mtu 9000
  need ip link set $dev mtu 9000
  start there $far jumbo respond.addresses=$peer/24
  show jumbo cat /tmp/jumbo
  for s in 64 1473 3000 4096 8000 8972; do pings 50 $s; done
  need flood $peer:7 200 8972
  stop
  show jumbos cat /tmp/out
  say over 9000
  need there ip link set $far mtu 1500
  need ip link set $dev mtu 1500
fi

need ip addr flush dev $dev # from here on no kernel says anything
need there ip addr flush dev $far
need there ip link set $far promisc on # or a card's VLAN filter keeps back what nobody has made an interface for
start there $far judged 'respond.addresses=["10.1.2.3/24","192.0.2.77/32","2001:db8::1:2:3/64","fe80::1/64"]' respond.udp_ports=[7,9000] guard.rate=0 guard.checksum_bytes=1500
judge $dev $frames >/tmp/need 2>&1 || { show failed cat /tmp/need; fail judge; }
show judged cat /tmp/need
say judged
stop

start there $far one respond.addresses=10.1.2.3/24 respond.udp_ports=[7001]
first=$pid; mv /tmp/out /tmp/first
start here $dev two respond.addresses=10.1.2.9/24 respond.udp_ports=[7000]
need judge $dev loop
# It is over when one of them has refused the datagram for its hop limit: they print what they counted when they are asked.
over() { kill -USR1 $first $pid; sleep 0.1; grep -q '^ *hop_limit ' /tmp/first /tmp/out; }
until_true 100 over
stop
kill -TERM $first; wait $first
final() { awk '/^summary/ { s = "" } { s = s $0 "\n" } END { printf "%s", s }' $1; } # of several summaries the last
show loop final /tmp/first
show loop final /tmp/out
say looped
kill -9 $(pidof sleep)
`

// TestLabXdp runs our program in native mode in Linux's drivers for all cards that we have models of: traffic, frames
// of every kind and randomly mutated ones, compared with package fastpath byte by byte, SIGKILL with a pin, and two
// responders that answer each other.
func TestLabXdp(t *testing.T) {
	guests(t)
	for _, c := range running(catalogue.XDP) {
		beside(t, "xdp/"+c.name, c.xdp)
	}
}

func (c *card) xdp(t *testing.T) {
	s := newScene(t)
	model, refused, jumbo := c.model, "", ""
	switch c.name {
	case "ena":
		refused = "yes"
	case "mlx5": // the only one of the three drivers that supports multi-buffer frames with XDP; the recorded card has no clock
		jumbo, model = "yes", connectX(mlx5sim.ConnectX6Dx)
	}
	s.pair(c, model, model)
	r, err := s.play(Machine{
		Limit: 150 * time.Second, Files: s.programs("bench", "flood", "judge", "responder"),
		Script: fmt.Sprintf("module=%s channels=1 frames=3000 refused=%s jumbo=%s\n%s", c.module, refused, jumbo,
			xdpScript),
		Say: func(key, _ string, r Result) error { return xdpSaid(key, r) },
	}, "all", "plain", "delivery", "clock", "jumbo", "jumbos", "judged")
	must.OK(t, err)
	if c.name == "mlx5" != (len(r["delivery"]) > 0) {
		t.Errorf("only mlx5_core's card gives receive timestamps here: %q", r["delivery"])
	}
	if clock := strings.Join(r["clock"], "\n"); !strings.Contains(clock, "no ptp4l at") ||
		(c.name != "ena") != strings.Contains(clock, "/dev/ptp") {
		t.Errorf("the bench says of the guest's clock: %s", clock)
	}
	if all := strings.Join(r["all"], "\n"); refused != "" &&
		(!strings.Contains(all, `push=xdp-generic`) || !strings.Contains(all, "ethtool -L")) {
		t.Errorf("with all channels in use the responder says: %s", all)
	}
	proven(t, "F3", "our program in Linux "+c.module, "every kind of frame, and changed ones, as fastpath answers them")
}

func shown(lines []string, patterns ...string) bool {
	s := strings.Join(lines, "\n")
	return !slices.ContainsFunc(patterns, func(want string) bool { return !regexp.MustCompile(want).MatchString(s) })
}

func shows(lines []string, patterns ...string) error {
	if !shown(lines, patterns...) {
		return fmt.Errorf("the pin says %q; want %q", lines, patterns)
	}
	return nil
}

func xdpSaid(key string, r Result) error {
	all := strings.Join(r[map[string]string{"attached": "plain", "looped": "loop"}[key]], "\n")
	switch key {
	case "attached":
		if !strings.Contains(all, `push=xdp-drv`) {
			return fmt.Errorf("the responder says of its device: %s", all)
		}
	case "pinned":
		return shows(r["pinned"], `"attached":true,"running":false`, `"icmpv4":[1-9]\d\d`, `"t2":"program"`)
	case "running":
		t2 := "program"
		if len(r["delivery"]) > 0 {
			t2 = "card"
		}
		return shows(r["running"], `"attached":true,"running":true`, `"icmpv4":[1-9]\d\d`, `"udpv4":10\d\d\b`,
			`"t2":"`+t2+`"`)
	case "unpinned":
		if slices.ContainsFunc(r["unpinned"], func(l string) bool { return strings.Contains(l, "xdp") }) {
			return fmt.Errorf("after unpin: %q", r["unpinned"])
		}
	case "over":
		if !shown(r["jumbo"], `push=xdp-drv`) || !shown(r["jumbos"], `(?m)^ *icmpv4 +300$`, `(?m)^ *udpv4 +20[0-3]$`) {
			return fmt.Errorf("with an MTU of 9000 the responder says: %q, %q", r["jumbo"], r["jumbos"])
		}
	case "looped":
		sum := func(name string) (n int) {
			for _, m := range regexp.MustCompile(`(?m)^ *`+name+` +(\d+)`).FindAllStringSubmatch(all, -1) {
				v, _ := strconv.Atoi(m[1])
				n += v
			}
			return n
		}
		if sum("udpv4") != 63 || sum("hop_limit") != 1 {
			return fmt.Errorf("two responders gave %d replies to a datagram with TTL 64, want 63, and refused %d for it:\n%s", sum("udpv4"), sum("hop_limit"), all)
		}
	}
	return nil
}
