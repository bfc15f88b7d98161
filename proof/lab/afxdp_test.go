package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// afxdpScript has Linux's driver on both functions. The second is in a network namespace, because otherwise the kernel
// would deliver traffic to itself locally instead of sending it on the wire. Our responder runs there on AF_XDP. The
// namespace's kernel has the address $own on the function.
const afxdpScript = farHelpers + `
need there ethtool -L $far combined 1
need there ip addr add $own/24 dev $far
need ip addr add 10.9.0.2/24 dev $dev
need there ip link set $far up
up
say up

in="nsenter -t $ns -n polls"
start() {
  respond -config /lab/config.toml -set nic.driver=afxdp -set nic.device=$far -set "cpu.cores=[0]" -set "respond.addresses=[\"$peer/24\"]"
  until_true 100 grep -q 1 /sys/class/net/$dev/carrier # attaching a program may reset the card
}
traffic() { # PINGS DATAGRAMS
  ip neigh flush dev $dev
  for s in 16 56 64 65 256 777 1472; do pings $1 $s; done
  floods $peer:7 $2 1472
}
kernel() { # what is not for the responder, and its own kernel answers
  pings 100 777 $own
}
start
say ready $(grep '^ready' /tmp/out)
show device sh -c "grep 'device' /tmp/err"
show sockets there xsk $far $pid
say attached
traffic 50 1000
say answered
kernel
say kernel
need polls bench run -target $peer -iface $dev -driver afpacket -closed -count 50 -timeout 60s -warmup 0s -self-test 0s -out /tmp/report
grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "the bench lost replies"; }
show bench cat /tmp/need
say benched
kill -9 $pid; wait $pid
show killed there xsk $far
say killed
start
show again there xsk $far $pid
traffic 20 200
kernel
say again
stop
show log cat /tmp/err
show stopped there xsk $far
say stopped
`

// TestLab/afxdp runs our responder in the guest on AF_XDP with zero copy, which requires a driver that supports it, and
// a card.
func (c *card) afxdp(t *testing.T) {
	s := newScene(t)
	s.pair(c, c.model, c.model)
	_, err := s.play(Machine{
		Limit: 120 * time.Second, OneCPU: true, Files: s.programs("flood", "xsk", "responder", "bench"),
		Script: fmt.Sprintf("module=%s peer=10.9.0.1 own=10.9.0.5\n%s", c.module, afxdpScript),
		Say: func(key, _ string, r Result) error {
			switch key {
			case "attached":
				if d := strings.Join(r["device"], "\n"); !strings.Contains(d, `push="xdp-drv zero-copy"`) {
					return fmt.Errorf("the responder says of its device: %s", d)
				}
				return zeroCopy(r["sockets"])
			case "killed", "stopped":
				if !slices.Equal(r[key], []string{"program 0"}) {
					return fmt.Errorf("when the responder was %s the interface has: %q", key, r[key])
				}
			case "again":
				return zeroCopy(r["again"])
			}
			return nil
		},
	}, "device", "sockets", "bench", "log")
	must.OK(t, err)
	proven(t, "F3", "ours with zero copy in Linux "+c.module,
		"pings, a flood, frames for the kernel, kill -9 and again")
}

func zeroCopy(lines []string) error {
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "program ") || lines[0] == "program 0" ||
		!strings.HasPrefix(lines[1], "socket ") || !strings.HasSuffix(lines[1], " zero-copy true") {
		return fmt.Errorf("want a program and one socket with zero copy, the kernel has: %q", lines)
	}
	return nil
}
