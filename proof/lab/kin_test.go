package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// kinScript runs the Linux driver on several cards at the same time; each is tested on its own wire, one after the
// other. $module, $jumbo, $peer and $count are set before it.
const kinScript = helpers + `
modprobe $module || fail modprobe $module
all() { for i in $(seq $count); do [ -n "$(having $i)" ] || return 1; done; }
until_true 100 all
for i in $(seq $count); do
  dev=$(having $i)
  need ip addr add 10.9.0.2/24 dev $dev
  up
  say up$i "$(cat /sys/class/net/$dev/speed)"
  for s in 0 56 777 1472; do pings 100 $s; done
  need arp -i $dev -s $peer 02:00:00:00:ee:01
  settled stats$i ethtool -S $dev
  need ip link set $dev mtu $jumbo
  up
  pings 20 $((jumbo-28))
  need ip link set $dev down
  need ip addr flush dev $dev
  say down$i
done
need rmmod $module
say gone
`

// TestLabIxgbe runs the Linux driver on the supported device types that TestLab does not cover, and our responder and
// bench on an X540 whose PHY Linux's driver has put into low power before.
func TestLabIxgbe(t *testing.T) {
	guests(t)
	beside(t, "ixgbe/F2kin", ixgbeKin)
	beside(t, "ixgbe/F3X540", func(t *testing.T) {
		(&card{name: "ixgbe", module: "ixgbe", model: ixgbeKind(ixgbesim.X540)}).f3(t)
	})
}

func ixgbeKind(k ixgbesim.Kind) func(mac [6]byte) sim.Model {
	return func(mac [6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: mac, Kind: k}) }
}

func ixgbeKin(t *testing.T) {
	s, c := newScene(t), ixgbeCard
	kinds := []ixgbesim.Kind{ixgbesim.Combined, ixgbesim.XAUI, ixgbesim.X540}
	var peers []*peer
	for _, kind := range kinds {
		near, far := sim.Pair()
		s.serve(c, near, ixgbeKind(kind))
		p := newPeer(far)
		defer p.close()
		peers = append(peers, p)
	}
	counters := settling{}
	_, err := s.play(Machine{
		Limit:  100 * time.Second,
		Script: fmt.Sprintf("module=%s jumbo=%d peer=10.9.0.1 count=%d\n%s", c.module, c.jumbo, len(kinds), kinScript),
		Say: func(key, text string, r Result) error {
			if key == "unbooted" { // it restarts
				for _, p := range peers {
					p.mu.Lock()
					p.icmp = 0
					p.mu.Unlock()
				}
			}
			i := strings.IndexAny(key, "123456789")
			if i < 0 {
				return nil
			}
			n := int(key[i] - '1')
			f, p := s.functions[n], peers[n]
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case len(p.wrong) > 0:
				return errors.New("the wire's far end got a broken frame: " + p.wrong[0])
			case key[:i] == "up" && text != "10000":
				return fmt.Errorf("the link came up at %s Mb/s", text)
			case key[:i] == "stats":
				if p.icmp != 400 {
					return fmt.Errorf("the peer answered %d pings of 400", p.icmp)
				}
				return counters.disagree(t, key, f.agree(c, numbers(r[key]), true))
			}
			return nil
		},
	})
	must.OK(t, err)
	if m := s.functions[2].model.(*ixgbesim.Model); m.PHY(0x1E_0000)&(1<<11) == 0 {
		t.Error("Linux left the X540's PHY in full power: TestPHY of nic/drivers/ixgbe assumes that it does not")
	}
	proven(t, "F2", "Linux "+c.module, "%d more kinds: 400 pings each, ethtool's counters, MTU %d", len(kinds), c.jumbo)
}
