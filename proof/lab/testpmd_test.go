package lab

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// pmdHelpers binds all functions of $vendor to vfio-pci unless $bifurcated is set, and runs testpmd on them.
const pmdHelpers = helpers + `
sysctl -q -w vm.nr_hugepages=160
mkdir -p /dev/hugepages /dev/pts /var/run /var/tmp /var/tmp
mount -t hugetlbfs hugetlbfs /dev/hugepages
mount -t devpts devpts /dev/pts
chmod 755 / # else it takes no plug-ins
addrs=
for d in /sys/bus/pci/devices/*; do
  [ $(cat $d/vendor)$(cat $d/class) != ${vendor}0x020000 ] || addrs="$addrs $(basename $d)"
done
if [ -z "$bifurcated" ]; then
  modprobe vfio_iommu_type1 || fail modprobe vfio_iommu_type1
  modprobe vfio-pci || fail modprobe vfio-pci
  for a in $addrs; do
    echo vfio-pci >/sys/bus/pci/devices/$a/driver_override
    echo $a >/sys/bus/pci/drivers_probe
  done
else
  for m in $module ib_uverbs mlx5_ib; do modprobe $m || fail modprobe $m; done
  until_true 100 test -e /dev/infiniband/uverbs1
  until_true 100 both
fi
mkfifo /tmp/commands
n=0
# pmd COMMAND...: commands of testpmd's, each one argument. What it printed since the ones before is in /tmp/said. Behind them goes
# one that it does not know, and says so when all before is done. It may say other things at any time, such as that a link came or went.
pmd() {
  n=$((n+1))
  local i=0
  for c in "$@"; do echo "$c" >&4; done
  echo "end-of-$n" >&4
  until [ $(grep -c 'Command not found' /tmp/out) -ge $((n-begun)) ]; do
    i=$((i+1))
    [ $i -lt 2400 ] || { show failed tail -30 /tmp/out; fail "testpmd does not end: $*"; }
    kill -0 $pid || { show failed tail -30 /tmp/out; fail "testpmd has ended: $*"; }
    sleep 0.1
  done
  [ $(grep -c 'Command not found' /tmp/out) = $((n-begun)) ] || { show failed tail -30 /tmp/out; fail "testpmd does not know one of: $*"; }
  { tail -c +$((from+1)) /tmp/out; echo; } | tr -d '\r' >/tmp/said
  from=$(stat -c %s /tmp/out)
}
# pmd_until PATTERN COMMAND: repeats it until it prints that
pmd_until() {
  local j=0
  until pmd "$2"; grep -q "$1" /tmp/said; do
    j=$((j+1))
    [ $j -lt 240 ] || { show failed cat /tmp/said; fail "testpmd: no $1 in $2"; }
    sleep 0.5
  done
}
# begin DEVARGS EAL -- APPLICATION: starts it
begin() {
  local devargs=$1 allow= ; shift
  for a in $addrs; do allow="$allow -a $a$devargs"; done
  : >/tmp/out
  from=0 begun=$n
  console dpdk-testpmd $allow "$@" </tmp/commands >/tmp/out 2>&1 &
  pid=$!
  exec 4>/tmp/commands
  pmd
}
end() {
  local code=0
  echo quit >&4
  wait $pid || code=$?
  [ $code = 0 ] || { show failed tail -30 /tmp/out; fail "testpmd ended with $code"; }
  exec 4>&-
}
`

// pmdRun is DPDK's testpmd on two functions of a card, whose wires end in the test.
type pmdRun struct {
	*scene
	ends   []*wireEnd
	macs   []net.HardwareAddr
	said   []string            // output of the step's commands
	ena    enasim.Counters     // counters of function 0 at the last call of pushed
	tall   int                 // frames sent by then that were longer than a wide LLQ entry
	mlx5   [2]mlx5sim.Counters // at the last call of countsFromHere
	zipped uint64              // compressed completions at the last call of zipped
	costs  []sim.Counts        // of a thousand echo replies each: testpmd's, and then our responder's
}

// pmdStep is a list of commands, and what the test does when they are done.
type pmdStep struct {
	name     string
	commands []string
	do       func(p *pmdRun) error
	until    string // the one command is repeated until it prints this
	rest     int    // seconds of rest before the commands
}

// pmdLife is one run of the program.
type pmdLife struct {
	name    string
	devargs string // appended to each device's address
	app     string // its arguments
	steps   []pmdStep
}

func (l *pmdLife) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "begin '%s' -l 0,1 -- -i --total-num-mbufs=12288 %s\nshow %s cat /tmp/said\nsay %[3]s\n", l.devargs,
		l.app, l.name)
	for _, s := range l.steps {
		if s.rest > 0 {
			fmt.Fprintf(&b, "sleep %d\n", s.rest)
		}
		b.WriteString("pmd")
		if s.until != "" {
			fmt.Fprintf(&b, "_until '%s'", s.until)
		}
		for _, c := range s.commands {
			fmt.Fprintf(&b, " '%s'", c)
		}
		fmt.Fprintf(&b, "\nshow %s:%s cat /tmp/said\nsay %[1]s:%s\n", l.name, s.name, s.name)
	}
	b.WriteString("end\n")
	return b.String()
}

func (c *pmdCard) run(t *testing.T) {
	p := &pmdRun{scene: newScene(t)}
	do := map[string]func(*pmdRun) error{}
	script := fmt.Sprintf("vendor=%s bifurcated=%s module=%s\n%s", c.vendor, map[bool]string{true: "yes"}[c.bifurcated],
		c.card.module, pmdHelpers)
	model := c.model
	if model == nil {
		model = c.card.model
	}
	for _, l := range c.lives {
		for _, s := range l.steps {
			do[l.name+":"+s.name] = s.do
		}
		script += l.script()
	}
	programs := []string{"console"}
	if c.ours != "" {
		script += c.ours
		do["ours"] = cost
		programs = append(programs, "responder")
	}
	for i := range 2 {
		near, far := sim.Pair()
		p.serve(c.card, near, model).foreign = true
		p.ends, p.macs = append(p.ends, newWireEnd(far)), append(p.macs, net.HardwareAddr{2, 0, 0, 0, 0, byte(1 + i)})
	}
	last := ""
	r, err := p.play(Machine{
		Limit: 5*time.Minute + time.Duration(forwarded())*time.Millisecond, IOMMU: true, Layers: []string{dpdk},
		Files: p.programs(programs...), Script: script,
		Say: func(key, _ string, r Result) error {
			last = key
			if do := do[key]; do != nil {
				p.said = r[key]
				if err := do(p); err != nil {
					for _, f := range p.functions {
						t.Logf("%s: counters %s", f.port.Name(), f.counters())
					}
					return fmt.Errorf("%s: %w", key, err)
				}
			}
			return nil
		},
	})
	if err != nil {
		life, _, _ := strings.Cut(last, ":")
		r.log(t, life, last)
		t.Fatal(err)
	}
	if c.ours != "" {
		p.compare(t, r["ours"])
	}
	steps, names := 0, []string{}
	for _, l := range c.lives {
		steps, names = steps+len(l.steps), append(names, l.name)
	}
	proven(t, "F4", "DPDK "+dpdkVersion(p.kit)+" net_"+c.card.name, "%s: %d steps, %d frames to testpmd, %d from it",
		strings.Join(names, ", "), steps, p.ends[0].sent+p.ends[1].sent, p.ends[0].came+p.ends[1].came)
}

func dpdkVersion(k *Kit) string {
	_, v, _ := strings.Cut(k.Version, "DPDK ")
	v, _, _ = strings.Cut(v, "-")
	return v
}

func TestLabTestpmd(t *testing.T) {
	guests(t)
	for i := range pmdCards {
		c := &pmdCards[i]
		beside(t, c.card.name+"/F4testpmd"+c.suffix, func(t *testing.T) { c.run(t) })
	}
}

// pmdCard is a card, with the tests of DPDK's driver for it.
type pmdCard struct {
	card       *card
	suffix     string                  // of the test's name
	model      func([6]byte) sim.Model // nil for the card's default
	vendor     string
	bifurcated bool // the function stays with Linux's driver
	lives      []pmdLife
	ours       string // script that says "ours" once our responder answers on function 0, after testpmd's lives
}

// oursBeside starts our responder beside Linux's driver, where testpmd was.
const oursBeside = `
rm -f /dev/hugepages/*
dev=$(ls /sys/bus/pci/devices/${addrs%% *}/net)
up
respond -set nic.device=$dev -set nic.driver=$driver -set respond.addresses=10.9.0.1/24
show ours cat /tmp/out /tmp/err
say ours
stop
`

const pmdApp = "--rxq=2 --txq=2 --nb-cores=1 --enable-rx-cksum"

var pmdCards = []pmdCard{
	{card: ixgbeCard, vendor: "0x8086", lives: []pmdLife{
		{name: "ixgbe", app: pmdApp, steps: pmdSteps(pmdAble{tso: true, vlan: true, linkSwitch: true, linkAlarm: true, rss: "udp", badIP: badIP, badL4: badL4 / 2})},
	}},
	{card: enaCard, vendor: "0x1d0f", lives: []pmdLife{
		{name: "llq", app: pmdApp + " --rss-udp", steps: append(pmdSteps(pmdAble{rss: "ports", badIP: badIP, badL4: badL4}), pushed(true, 0))},
		{name: "off", devargs: ",llq_policy=0", app: pmdApp, steps: append(slices.Clone(pmdShort), pushed(false, 0))},
		{name: "large", devargs: ",llq_policy=3", app: pmdApp, steps: append(slices.Clone(pmdShort), pushed(true, 224))},
	}},
	// With user contexts: testpmd creates its queues, tables and rules by DEVX, as our driver does.
	{card: mlx5Card, model: connectX5, vendor: "0x15b3", bifurcated: true,
		ours: "addrs=${addrs# } driver=mlx5\n" + oursBeside, lives: []pmdLife{
			// The driver never reports a wrong checksum, only right or unknown. At an MTU of 9000 a receive WQE has
			// eight buffers, so a ring of 256 has only 32 frames.
			{name: "mlx5", app: pmdApp + " --rxd=1024 --txd=1024", steps: append(pmdSteps(pmdAble{tso: true, vlan: true, linkSwitch: true, rss: "udp", restart: true, jumbo: 96, cleared: true}), zipped(true))},
			{name: "plain", devargs: ",rxq_cqe_comp_en=0", app: pmdApp, steps: append(slices.Insert(slices.Clone(pmdShort), 1, pmdCost), zipped(false))},
		}},
	// Without user contexts both use queue pairs for raw packets.
	{card: mlx5Card, suffix: "Verbs", model: withoutContexts, vendor: "0x15b3", bifurcated: true,
		ours: "addrs=${addrs# } driver=mlx5\n" + oursBeside, lives: []pmdLife{
			{name: "verbs", devargs: ",rxq_cqe_comp_en=0", app: pmdApp, steps: append(slices.Insert(slices.Clone(pmdShort), 1, pmdCost), zipped(false))},
		}},
}

// withoutContexts is a card with UCTX_EN=0.
func withoutContexts(mac [6]byte) sim.Model {
	return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectX5, NoUCTX: true})
}

func connectX5(mac [6]byte) sim.Model {
	return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectX5})
}

// pmdAble lists the steps that a card supports.
type pmdAble struct {
	tso, vlan  bool
	linkSwitch bool   // the driver implements "set link-down"
	rss        string // "ports" if the hash includes ports from the start, "udp" if they are configured later
	restart    bool   // such a change requires a restart of the port
	// jumbo frames in flight; 24 if zero, for rings of 256 of which one frame takes up to five descriptors
	jumbo     int
	linkAlarm bool // a link change starts a timer of several seconds, which has to expire before ports are stopped
	// statistics are checked after they were cleared, because the driver's own do not survive a restart of the port
	cleared bool
	badIP   int // wrong IPv4 checksums that the driver reports
	badL4   int // wrong UDP and TCP checksums that the driver reports
}

var pmdShort = []pmdStep{
	{name: "echo", commands: []string{"set fwd icmpecho", "start"}, do: inTurn(echoes(0, 1514, 300), echoes(1, 1514, 300))},
	{name: "forward", commands: []string{"stop", "set fwd io", "start"}, do: forwards(2000, 1514)},
}

// pmdCost is after the first step, while testpmd answers pings.
var pmdCost = pmdStep{name: "cost", do: cost}

// forwarded is how many frames testpmd forwards in each direction.
func forwarded() int { return fromEnv("REBOUND_LAB_FRAMES", 3000) }

// fromEnv is the value of an environment variable, or else what it usually is.
func fromEnv(name string, usual int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(usual)))
	if err != nil || n < 1 {
		panic(name + " is no number above zero: " + os.Getenv(name))
	}
	return n
}

func pmdSteps(able pmdAble) []pmdStep {
	steps := []pmdStep{
		{name: "echo", commands: []string{"set fwd icmpecho", "start"}, do: inTurn(echoes(0, 1514, 1000), echoes(1, 1514, 1000))},
		{name: "again", commands: []string{"stop", "port stop all", "port start all", "start"}, do: echoes(0, 1514, 100)},
		{name: "forward", commands: []string{"stop", "set fwd io", "start"}, do: forwards(forwarded(), 1514)},
		{name: "flows", commands: []string{"stop", "set verbose 1", "set fwd macswap", "start"}, do: flows},
		{name: "hashes", commands: []string{"stop", "show port 0 rss-hash key"}, do: hashed(able.rss == "ports")},
	}
	if able.rss == "udp" {
		ports := []string{"port config all rss udp", "start"}
		if able.restart {
			ports = []string{"port config all rss udp", "port stop all", "port start all", "start"}
		}
		steps = append(steps,
			pmdStep{name: "ports", commands: ports, do: flows},
			pmdStep{name: "hashes2", commands: []string{"stop", "show port 0 rss-hash key"}, do: hashed(true)})
	}
	steps = append(steps,
		pmdStep{name: "checksums", commands: []string{"set verbose 0", "port stop all", "csum set ip hw 1",
			"csum set udp hw 1", "csum set tcp hw 1",
			"port start all", "set fwd csum", "start"}, do: checksums},
		pmdStep{name: "bad", commands: []string{"stop"}, do: says(
			fmt.Sprintf("Bad-ipcsum: %d +Bad-l4csum: %d ", able.badIP, able.badL4))})
	if able.tso {
		steps = append(steps,
			pmdStep{name: "tso", commands: []string{"port stop all", "tso set 500 1", "port start all", "start"},
				do: segments(500)},
			pmdStep{name: "tsooff", commands: []string{"stop", "port stop all", "tso set 0 1", "port start all"}})
	}
	if able.vlan {
		steps = append(steps,
			pmdStep{name: "vlan", commands: []string{"port stop all", "vlan set strip on 0", "tx_vlan set 1 77",
				"port start all", "set fwd macswap",
				"set verbose 1", "start"}, do: vlans(5, 77)},
			pmdStep{name: "tag", commands: []string{"stop", "set verbose 0", "port stop all", "vlan set strip off 0",
				"tx_vlan reset 1", "port start all"}, do: says("VLAN tci=0x5")})
	}
	steps = append(steps,
		pmdStep{name: "jumbo", commands: []string{"port stop all", "port config mtu 0 9000", "port config mtu 1 9000",
			"port config 0 rx_offload scatter on", "port config 1 rx_offload scatter on",
			"port config 0 tx_offload multi_segs on", "port config 1 tx_offload multi_segs on",
			"port start all", "set fwd io", "start"}, do: forwardsWithin(1000, 9014, cmp.Or(able.jumbo, 24))})
	if able.linkAlarm {
		steps = append(steps, pmdStep{name: "rest", rest: 6,
			commands: []string{"stop", "port stop all", "port start all", "start"}})
	}
	steps = append(steps, pmdStep{name: "pull", do: cable(0, false)},
		pmdStep{name: "down", commands: []string{"show port info 0"}, until: "Link status: down", do: cable(0, true)},
		pmdStep{name: "up", commands: []string{"show port info 0"}, until: "Link status: up", do: forwards(200, 1514)})
	if able.linkSwitch {
		steps = append(steps,
			pmdStep{name: "switch", commands: []string{"set link-down port 0"}},
			pmdStep{name: "off", commands: []string{"show port info 0"}, until: "Link status: down"},
			pmdStep{name: "on", commands: []string{"set link-up port 0"}},
			pmdStep{name: "back", commands: []string{"show port info 0"}, until: "Link status: up",
				do: forwards(200, 1514)})
	}
	if able.cleared {
		steps = append(steps, pmdStep{name: "clear", commands: []string{"clear port stats all",
			"clear port xstats all"}, do: inTurn(countsFromHere, forwards(1000, 1514))})
	}
	return append(steps, pmdStep{name: "xstats", commands: []string{"stop", "show port xstats 0"}, do: xstats(0)},
		pmdStep{name: "xstats1", commands: []string{"show port xstats 1"}, do: xstats(1)})
}
