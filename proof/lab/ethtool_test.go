package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// ethtoolScript runs ethtool's tests, dumps and settings one after the other. The peer must answer after each.
const ethtoolScript = helpers + `
bring $module
need arp -s $peer 02:00:00:00:ee:01
answers() { /bin/ping -q -f -c 3 -W 2 $peer; }
try() { # ARGUMENTS of ethtool, with DEV for the interface
  local code=0
  dmesg -c >/dev/null
  local args="$(echo "$*" | sed s/DEV/eth0/)" tries=0
  until code=0; ethtool $args >/tmp/tried 2>&1 || code=$?; [ $code = 0 ] || [ "$1" != -t ] || [ $tries = 100 ]; do tries=$((tries+1)); done # mlx5's loopback test waits 0.2 s
  [ $code = 0 ] || show refused echo "ethtool $*: $(tail -1 /tmp/tried)"
  [ "$1" != -t ] || [ $code = 0 ] || { show tests cat /tmp/tried; show tests dmesg; }
  n=0; until answers >/dev/null 2>&1; do
    n=$((n+1)); [ $n -lt 100 ] || { show failed cat /tmp/tried; show failed dmesg; show failed ethtool -S eth0; fail "no answer after ethtool $*"; }; sleep 0.1; done
  say tried "$*"
}
answers >/dev/null 2>&1
for o in -i -d -e -S -m -a -c -g -l -x -T -n --show-eee --show-fec --show-priv-flags; do try $o DEV; done
try -t DEV online
try -t DEV offline
ethtool -k eth0 | awk -F '[: ]+' 'NR > 1 && !/fixed/ && !/^[ \t]/ && !/^loopback|^hw-tc-offload|^l2-fwd-offload|^esp-|^macsec/ { print $1, $2 }' >/tmp/features
while read name value <&4; do
  [ $value = on ] && other=off || other=on
  try -K DEV $name $other
  try -K DEV $name $value
done 4</tmp/features
try -K DEV lro on
try -K DEV lro off
try -L DEV combined 1
try -L DEV combined 2
try -G DEV rx 256 tx 256
try -G DEV rx 1024 tx 1024
try -X DEV equal 1
try -X DEV default
try -C DEV rx-usecs 50
try -A DEV rx off tx off
try -s DEV msglvl 7
try -r DEV
`

// TestLabEthtool runs Linux's ethtool on every card's model: "go test ./proof/lab -run LabEthtool/ixgbe -v". Linux's
// driver must accept what it accepts on a card, and refuse the rest.
func TestLabEthtool(t *testing.T) {
	guests(t)
	for _, c := range running(catalogue.F2) {
		beside(t, c.name, c.ethtool)
	}
}

// notOffered are the requests that the Linux driver of a card has no function for, or refuses by its own rules.
var notOffered = map[string][]string{
	"ixgbe": {"--show-eee DEV", "--show-fec DEV"},
	"ena": {"--show-eee DEV", "--show-fec DEV", "--show-priv-flags DEV", "-A DEV rx off tx off", "-K DEV lro on",
		"-K DEV tcp-segmentation-offload on",
		"-a DEV", "-d DEV", "-e DEV", "-m DEV", "-n DEV", "-r DEV", "-t DEV offline", "-t DEV online"},
	"mlx4": {"--show-eee DEV", "--show-fec DEV", "-K DEV lro on", "-K DEV rx-vlan-stag-hw-parse off",
		"-L DEV combined 1", "-L DEV combined 2",
		"-d DEV", "-e DEV", "-n DEV", "-r DEV"},
	"mlx5": {"--show-eee DEV", "--show-fec DEV", "-C DEV rx-usecs 50", "-K DEV lro on", "-d DEV", "-e DEV", "-r DEV", "-s DEV msglvl 7"},
}

func (c *card) ethtool(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	s.serve(c, near, c.model).foreign = true // the register test writes reserved bits
	p := newPeer(far)
	defer p.close()
	r, err := s.play(Machine{
		Limit:  300 * time.Second,
		Script: fmt.Sprintf("module=%s peer=10.9.0.1\n%s", c.module, ethtoolScript),
	}, "refused", "tests", "failed")
	must.OK(t, err)
	refused := map[string]bool{}
	for _, line := range r["refused"] {
		request, _, _ := strings.Cut(line, ": ")
		refused[strings.TrimPrefix(request, "ethtool ")] = true
	}
	check.Same(t, slices.Sorted(maps.Keys(refused)), notOffered[c.name], "refused requests %q")
}
