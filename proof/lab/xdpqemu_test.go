package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// xdpQEMUScript has Linux's driver on one of QEMU's own devices, and our responder's program in it. Its kernel has no
// address, so all replies are ours. $module is set before it.
const xdpQEMUScript = helpers + `
modprobe $module || fail modprobe $module
having1() { [ -n "$(having 1)" ]; }
until_true 100 having1
dev=$(having 1)
ethtool -K $dev rxvlan off >/dev/null 2>&1
ethtool -L $dev combined 1 >/dev/null 2>&1 # what comes stays in order
need ip link set $dev promisc on # or a card's VLAN filter keeps back what nobody has made an interface for
up
start() { # NAME SETTINGS...
  local name=$1 a=; shift
  for s in "$@"; do a="$a -set $s"; done
  respond -config /lab/config.toml -set nic.driver=xdp -set nic.device=$dev $a
  until_true 100 grep -q 1 /sys/class/net/$dev/carrier
  show $name grep 'msg="*device' /tmp/err
}
start plain respond.addresses=10.9.0.1/24
say plain
kill -9 $pid; wait $pid
start judged 'respond.addresses=["10.1.2.3/24","192.0.2.77/32","2001:db8::1:2:3/64","fe80::1/64"]' respond.udp_ports=[7,9000] guard.rate=0 guard.checksum_bytes=1500
say judged
stop
show summary cat /tmp/out
`

// TestLabXdpQEMU runs our program in Linux's drivers for third-party devices: QEMU's igb and its virtio-net. The peer
// is the host's kernel, through a tap, and the replies to its frames are compared with package fastpath there.
func TestLabXdpQEMU(t *testing.T) {
	guests(t)
	for _, c := range []struct {
		module, device string
		partial        bool // received checksums may be left to be completed by the receiver
	}{
		{"igb", "igb", false},
		{"virtio_net", "virtio-net-pci,disable-legacy=on", true},
	} {
		beside(t, "xdp/"+c.module, func(t *testing.T) { xdpQEMU(t, c.module, c.device, c.partial) })
	}
}

func xdpQEMU(t *testing.T, module, device string, partial bool) {
	s := newScene(t)
	flood, judge := s.onHost("flood"), s.onHost("judge")
	p := newTap(t, 1, 1500)
	_, err := s.play(Machine{
		Limit: 2 * time.Minute,
		Devices: []Device{{
			Model: device + ",netdev=n0,mac=02:00:00:00:00:01,romfile=", Backend: "tap,id=n0,fds=FD0", Files: p.files,
		}},
		Files: s.programs("responder"), Script: fmt.Sprintf("module=%s\n%s", module, xdpQEMUScript),
		Say: func(key, _ string, r Result) error {
			if key != "plain" && key != "judged" {
				return nil
			}
			if said := strings.Join(r[key], "\n"); !strings.Contains(said, "push=xdp-drv") {
				return fmt.Errorf("the responder says of its device: %s", said)
			}
			if key == "plain" {
				return p.traffic(flood, 100, 1000, 1500)
			}
			if _, err := p.run("ip", "addr", "flush", "dev", "tap0"); err != nil {
				return err
			}
			args := []string{"tap0", "3000"}
			if partial {
				args = append(args, "partial")
			}
			out, err := p.run(judge, args...)
			t.Logf("%s", strings.TrimSpace(out))
			return err
		},
	}, "plain", "summary")
	must.OK(t, err)
	proven(t, "F4", "our program in Linux "+module+", on QEMU's device",
		"every kind of frame, and changed ones, as fastpath answers them")
}
