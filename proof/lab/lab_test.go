package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// card is a catalogue row as used by the scenarios.
type card struct {
	name         string // of the subtest and of our driver
	module       string // Linux's driver
	model, other func(mac [6]byte) sim.Model
	jumbo        int
	physical     bool
	agree        func(m sim.Model, shown map[string]uint64, all bool) []string
}

var (
	ixgbeCard = cardOf("ixgbe")
	enaCard   = cardOf("ena")
	mlx5Card  = cardOf("mlx5")
	mlx4Card  = cardOf("mlx4")
	efaCard   = cardOf("efa")
)

func cardOf(name string) *card {
	row := catalogue.Find(name)
	l := row.Lab
	c := &card{name: row.Driver, module: l.Module, model: l.Model, other: l.Other, jumbo: l.Jumbo, physical: l.Physical,
		agree: l.Agree}
	if c.model == nil {
		c.model = row.New
	}
	return c
}

func running(scenario string) (all []*card) {
	for i := range catalogue.All {
		if catalogue.All[i].Runs(scenario) {
			all = append(all, cardOf(catalogue.All[i].Name))
		}
	}
	return all
}

// function is a model of a card, served for QEMU.
type function struct {
	model  sim.Model
	port   *sim.Port
	socket string

	foreign bool // third-party driver: the model may report warnings
}

// serve adds a function of a card to the scene's bus. The last digit of its MAC address is its number, from 1.
func (s *scene) serve(c *card, w sim.Wire, model func([6]byte) sim.Model) *function {
	s.Helper()
	i := len(s.functions)
	name := fmt.Sprintf("%s%d", c.name, i)
	f := &function{model: model([6]byte{2, 0, 0, 0, 0, byte(1 + i)}), socket: filepath.Join(s.dir, name+".sock")}
	log := must.Get(os.Create(filepath.Join(s.dir, fmt.Sprintf("server%d.log", i))))(s)
	f.port = must.Get(sim.New(f.model, sim.Options{Name: name}))(s)
	f.port.StartTrace(traceDepth)
	f.port.Connect(w)
	server := must.Get(vfioserver.Listen(f.socket, f.port, slog.New(
		slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))))(s)
	f.port.StartRemote()
	s.Cleanup(func() {
		server.Close()
		f.port.Stop()
		for _, v := range f.port.Violations() {
			fmt.Fprintln(log, "violation:", v)
		}
		fmt.Fprintf(log, "transactions: %+v\n", f.port.Counts())
		if s.Failed() {
			s.Logf("%s dropped %v; its counters are %s", f.port.Name(), f.port.Drops(), f.counters())
			check.OK(s, f.leave(filepath.Join(s.dir, fmt.Sprintf("trace%d.log", i))))
		}
		f.port.Close()
		log.Close()
	})
	s.functions = append(s.functions, f)
	return f
}

// pair adds two functions of a card, which share a wire.
func (s *scene) pair(c *card, near, far func([6]byte) sim.Model) (f, g *function) {
	a, b := sim.Pair()
	return s.serve(c, a, near), s.serve(c, b, far)
}

// counters returns the model's counters as text: each model has its type of them.
func (f *function) counters() string {
	count := reflect.ValueOf(f.model).MethodByName("Counters")
	if !count.IsValid() {
		return "not kept"
	}
	return fmt.Sprintf("%+v", count.Call(nil)[0])
}

func (f *function) agree(c *card, shown map[string]uint64, all bool) (d []string) {
	f.port.Hold(func() { d = c.agree(f.model, shown, all) })
	return d
}

// built has the guests' programs by package: each is linked once for all scenarios.
var built struct {
	sync.Mutex
	binary map[string][]byte
}

// programs builds programs, of cmd or of the lab, which the guest has below /lab, with an empty configuration.
func (s *scene) programs(names ...string) map[string][]byte {
	files := map[string][]byte{"config.toml": nil}
	for _, name := range names {
		folder := "cmd/"
		if !slices.Contains([]string{"bench", "prove", "responder", "watch"}, name) {
			folder = "proof/lab/"
		}
		files[name] = build(s.T, s.dir, "github.com/rebound-nic/rebound/"+folder+name)
	}
	return files
}

func build(t *testing.T, dir, pkg string) []byte {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if b := built.binary[pkg]; b != nil {
		return b
	}
	out := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, b)
	}
	b := must.Get(os.ReadFile(out))(t)
	os.Remove(out)
	if built.binary == nil {
		built.binary = map[string][]byte{}
	}
	built.binary[pkg] = b
	return b
}

// TestLab runs rungs F2 and F3 for each card: "go test ./proof/lab -run Lab/ixgbe -v", or make lab NIC=ixgbe.
func TestLab(t *testing.T) {
	guests(t)
	for i := range catalogue.All {
		row := &catalogue.All[i]
		if row.Lab == nil {
			continue
		}
		c := cardOf(row.Name)
		for _, s := range []struct {
			name string
			run  func(*testing.T)
		}{{catalogue.F2, c.f2}, {catalogue.F2Pair, c.f2pair}, {catalogue.F3, c.f3}} {
			if row.Runs(s.name) {
				beside(t, c.name+"/"+s.name, s.run)
			}
		}
	}
	beside(t, "afxdp", func(t *testing.T) {
		for _, c := range running(catalogue.AFXDP) {
			beside(t, c.name, c.afxdp)
		}
	})
}

// guests starts a test that boots guests. They run in parallel with other tests' guests, up to the number set by
// -parallel, which is one per core by default.
func guests(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the lab boots virtual machines for a quarter of a minute to a minute each")
	}
	t.Parallel()
}

// beside is t.Run for a parallel subtest, which needs separate folders, sockets and network namespaces.
func beside(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		attempts(t, f)
	})
}

// attempts runs a scenario again, with new models and a new guest, if it ended with errBreakpoint. REBOUND_LAB_TWICE=1
// runs every scenario again, to test that it can.
func attempts(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	attempted.Store(t, true)
	for n := 1; n < boots; n++ {
		err := attempt(t, f)
		if err == nil && (n > 1 || os.Getenv("REBOUND_LAB_TWICE") == "") {
			return
		}
		t.Logf("it runs again: %v", err)
	}
	attempted.Delete(t) // the last attempt's result counts, whatever it is
	f(t)
}

// attempted has the *testing.T whose guests panic with a value of the type died if they fail with errBreakpoint.
var attempted sync.Map

type died struct{ error }

func attempt(t *testing.T, f func(t *testing.T)) (err error) {
	t.Helper()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case died:
			err = r.error
		default:
			panic(r)
		}
	}()
	f(t)
	return nil
}

// helpers are shell functions of both rungs. $dev is the Linux driver's interface, $peer the peer, $pid a responder
// that writes to /tmp/out and /tmp/err.
const helpers = `
until_true() { # TENTHS COMMAND...: tenths of a second where the machine is quiet; a busy one has ten times that
  local n=$(($1*10)); shift
  while ! "$@" >/dev/null 2>&1; do n=$((n-1)); [ $n -gt 0 ] || fail "waited in vain: $*"; sleep 0.1; done
}
up() {
  need ip link set $dev up
  until_true 100 grep -q 1 /sys/class/net/$dev/carrier
}
# The kernel counts the replies: ping does not wait for the last one for longer than two of the round trips before it, and
# calls what comes later lost.
replies() { awk '$1 == "Icmp:" { if (!at) for (at = NF; $at != "InEchoReps"; at--); else print $at }' /proc/net/snmp; }
# echoed: those of both families
echoed() { echo $(($(replies) + $(awk '$1 == "Icmp6InEchoReplies" { print $2 }' /proc/net/snmp6))); }
pings() { # COUNT SIZE ADDRESS, $peer unless given
  local n=0 all=$(($(replies)+$1))
  /bin/ping -q -f -c $1 -s $2 ${3:-$peer} >/tmp/ping 2>&1
  grep -q 'duplicates\|errors\|wrong\|corrupted' /tmp/ping && { show failed cat /tmp/ping; fail "$1 pings of $2 bytes"; }
  while [ $(replies) -lt $all ]; do # more, where a ping before gave up a reply that came
    n=$((n+1)); [ $n -lt 300 ] || { show failed cat /tmp/ping; fail "$1 pings of $2 bytes: $(($all-$(replies))) replies are missing"; }
    sleep 0.1
  done
}
stop() { # the responder, which has to end well
  local code=0
  kill -TERM $pid
  wait $pid || code=$?
  [ $code = 0 ] || { show failed cat /tmp/err; fail "the responder ended with $code"; }
}
# counters: who lost a datagram: the responder, the link or this kernel
counters() {
  kill -USR1 $pid && sleep 1
  cat /tmp/out
  cat /proc/net/dev
  ethtool -S $dev | grep -v ': 0$'
  grep '^Ip:\|^Udp:' /proc/net/snmp
  ip neigh
}
floods() {
  flood "$@" >/tmp/need 2>&1 || { show failed cat /tmp/need /tmp/err; show failed counters; fail "flood $*"; }
}
# settled KEY COMMAND...: shows what the command prints, and says KEY, until the test no longer asks for it again
settled() {
  local k=$1; shift
  while show $k "$@"; say $k; [ "$answer" = again ]; do sleep 0.5; done
}
# listens COMMAND...: waits until somebody takes connections over TCP, where the command leads to
listens() { until_true 100 "$@" grep -q ' 0A ' /proc/net/tcp /proc/net/tcp6; }
# N: the interface of function N, by its address
having() { for n in /sys/class/net/*; do [ "$(cat $n/address)" = 02:00:00:00:00:0$1 ] && basename $n; done; }
both() { [ -n "$(having 1)" ] && [ -n "$(having 2)" ]; }
await_ready() { # the responder $pid, which writes to /tmp/out and /tmp/err
  i=0; while ! grep -q '^ready ' /tmp/out; do
    kill -0 $pid 2>/dev/null || { show failed cat /tmp/err; fail the responder ended; }
    i=$((i+1)); [ $i -lt 1200 ] || { show failed cat /tmp/err; fail the responder is not ready; }; sleep 0.1; done
}
# respond ARGUMENTS...: starts a responder, by the command $in if there is one, and waits until it is ready
respond() {
  : >/tmp/out # or what the one before wrote is taken for this one's
  $in responder -v "$@" >/tmp/out 2>/tmp/err &
  pid=$!
  await_ready
}
# bring MODULE: loads the driver of eth0, which gets its address
bring() {
  modprobe $1 || fail modprobe $1
  dev=eth0
  until_true 50 test -e /sys/class/net/eth0
  need ip addr add 10.9.0.2/24 dev eth0
  up
}
# namespace: a network namespace, where "there" runs commands. It has no IPv6, because solicitations and reports at random times
# would be counted, too.
namespace() {
  unshare -n sh -c 'echo $$ >/tmp/ns; exec sleep 10000' &
  until_true 50 test -s /tmp/ns
  ns=$(cat /tmp/ns)
  need there sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
}
there() { nsenter -t $ns -n "$@"; }
`

// f2Script exercises the Linux driver on our model. $module, $jumbo and $peer are set before it.
const f2Script = helpers + `
bring $module
say up "$(cat /sys/class/net/eth0/speed)"
show ethtool ethtool eth0
need /bin/ping -c 1 -W 60 $peer
for s in 0 1 2 17 18 56 63 64 65 128 255 256 512 777 1024 1400 1471 1472; do pings 100 $s; done
pings 1000 56
say pinged
floods $peer:7 2000 1472
say flooded
need arp -s $peer 02:00:00:00:ee:01 # or the kernel asks again at any time, and the counters move
settled stats ethtool -S eth0
need ip link set eth0 mtu $jumbo
up
for s in 1473 2000 3000 4096 $((jumbo-28)); do pings 20 $s; done
floods $peer:7 500 $((jumbo-28))
say jumbo
settled totals ethtool -S eth0
need ip link set eth0 down
need ip link set eth0 mtu 1500
up
pings 200 56
say again
need rmmod $module
bring $module
pings 200 200
say reloaded
need ip link set eth0 down
need rmmod $module
`

// f2Pings is how many pings the script sends before "stats": each must have reached the peer.
const f2Pings = 1 + 18*100 + 1000

// f2 runs the unmodified Linux driver on our model.
func (c *card) f2(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	f := s.serve(c, near, c.model)
	p := newPeer(far)
	defer p.close()
	counters := settling{}
	_, err := s.play(Machine{
		Limit: 150 * time.Second, Files: s.programs("flood"),
		Script: fmt.Sprintf("module=%s jumbo=%d peer=10.9.0.1\n%s", c.module, c.jumbo, f2Script),
		Say: func(key, text string, r Result) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case key == "unbooted": // it restarts
				p.icmp, p.udp = 0, 0
			case len(p.wrong) > 0:
				return errors.New("the wire's far end got a broken frame: " + p.wrong[0])
			case key == "pinged" && p.icmp != f2Pings:
				return fmt.Errorf("the peer answered %d pings of %d", p.icmp, f2Pings)
			case key == "flooded" && p.udp != 2000:
				return fmt.Errorf("the peer answered %d datagrams of 2000", p.udp)
			case key == "stats", key == "totals":
				return counters.disagree(t, key, f.agree(c, numbers(r[key]), key == "stats"))
			}
			return nil
		},
	})
	p.mu.Lock()
	for _, w := range p.wrong {
		t.Error("the peer got a broken frame: ", w)
	}
	p.mu.Unlock()
	must.OK(t, err)
	proven(t, "F2", "Linux "+c.module, "%d pings, %d datagrams, ethtool's counters, MTU %d, reload", p.icmp, p.udp,
		c.jumbo)
}

func numbers(lines []string) map[string]uint64 {
	m := map[string]uint64{}
	for _, l := range lines {
		name, v, _ := strings.Cut(strings.TrimSpace(l), ":")
		if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
			m[name] = n
		}
	}
	return m
}
