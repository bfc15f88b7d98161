package lab

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// mlx5Script spreads flows over both channels, continues to send while the firmware requests and returns pages, has
// completions compressed, and survives a failure of the firmware.
const mlx5Script = helpers + `
bring mlx5_core
need arp -s $peer 02:00:00:00:ee:01
count() { ethtool -S eth0 | sed -n "s/^ *$1: //p"; }
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do floods $peer:7 100 200; done
show spread sh -c "ethtool -S eth0 | grep -E 'rx[01]_packets'"
say spread
need ethtool -L eth0 combined 1
up
floods $peer:7 500 1472 # small ones overflow the socket, which counts bytes of memory
say one
need ethtool -L eth0 combined 2
up
for i in 1 2 3 4 5 6; do
  say pages $i
  floods $peer:7 1000 1472
done
pings 100 56
say flooded
settled stats ethtool -S eth0
need ethtool --set-priv-flags eth0 rx_cqe_compress on
up
for i in 1 2 3; do floods $peer:7 1000 1472; done
pings 100 56
show zipped ethtool -S eth0
say zipped
need ethtool --set-priv-flags eth0 rx_cqe_compress off
up
for i in 1 2 3; do
  need ip link set eth0 down
  up
done
pings 50 56
say fatal
recovered() { dmesg | grep -q "health recovery succeeded"; }
until_true 300 recovered
until_true 50 test -e /sys/class/net/eth0
ip addr add 10.9.0.2/24 dev eth0 2>/dev/null # the interface was made again, and is down
up
pings 50 56
need rmmod mlx5_core
say gone
`

// TestLabMlx5 has the Linux driver spread flows over two channels, serve page requests under load, and recover from a
// failed firmware. It also runs newer functions, including a virtual one, with features that the recorded card lacks.
func TestLabMlx5(t *testing.T) {
	guests(t)
	beside(t, "mlx5/Load", mlx5Load)
	beside(t, "mlx5/Newer", mlx5Newer)
	beside(t, "mlx5/F3VF", func(t *testing.T) { mlx5VF.f3run(t, vfScript) })
}

// mlx5VF is a virtual function, whose pages its host supplies, on both sides of the wire.
var mlx5VF = card{
	name: "mlx5", module: "mlx5_core",
	model: func(mac [6]byte) sim.Model {
		return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectXVF, HostPages: true})
	},
}

// connectX makes the model of a ConnectX.
func connectX(p mlx5sim.Profile) func([6]byte) sim.Model {
	return func(mac [6]byte) sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: p}) }
}

func mlx5Load(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	f := s.serve(mlx5Card, near, mlx5Card.model)
	m := f.model.(*mlx5sim.Model)
	p := newPeer(far)
	defer p.close()
	before, most, owned, want := 0, 0, 0, 0
	count := func() { f.port.Hold(func() { owned, _ = m.Pages() }) }
	served := func() { // or until the timeout, which the caller detects
		await.Holds(func() bool { count(); return owned == want })
	}
	counters := settling{}
	_, err := s.play(Machine{
		Limit: 100 * time.Second, Files: s.programs("flood"), Script: "peer=10.9.0.1\n" + mlx5Script,
		Say: func(key, text string, r Result) error {
			count()
			switch key {
			case "spread":
				n := numbers(r["spread"])
				if a, b := n["rx0_packets"], n["rx1_packets"]; a < 200 || b < 200 || a+b < 1600 {
					return fmt.Errorf("16 flows of 100 datagrams were spread as %d and %d", a, b)
				}
			case "pages": // grow and return alternately; each is served while the next flood runs
				if before == 0 {
					before, want = owned, owned
				}
				served()
				most = max(most, owned)
				n := -200
				if text == "1" || text == "3" || text == "5" {
					n = 300
				}
				want += n
				m.AskPages(n)
			case "unbooted": // it restarts
				before, most = 0, 0
			case "stats":
				// Channels were created again, so their sums include several queues.
				d := slices.DeleteFunc(f.agree(mlx5Card, numbers(r["stats"]), true),
					func(s string) bool { return strings.Contains(s, "the model's queues have") })
				if err := counters.disagree(t, key, d); err != nil {
					return err
				}
				served()
				if most < before+300 || owned != before+300 {
					return fmt.Errorf("the firmware had %d pages, then up to %d, and %d after it asked for 3 times 300 and gave 3 times 200 back", before, most, owned)
				}
			case "zipped":
				var k mlx5sim.Counters
				f.port.Hold(func() { k = m.Counters() })
				n := numbers(r["zipped"])
				if k.Compressed == 0 || n["rx_cqe_compress_blks"] != k.Sessions ||
					n["rx_cqe_compress_pkts"] != k.Compressed {
					return fmt.Errorf("ethtool shows %d compressed completions in %d blocks, the model says %d in %d",
						n["rx_cqe_compress_pkts"], n["rx_cqe_compress_blks"], k.Compressed, k.Sessions)
				}
				t.Logf("%d completions came compressed, in %d sessions", k.Compressed, k.Sessions)
			case "fatal":
				m.Fatal(1)
			case "gone":
				if owned != 0 {
					return fmt.Errorf("the driver left %d pages with the firmware", owned)
				}
			}
			return nil
		},
	})
	must.OK(t, err)
	proven(t, "F2", "Linux mlx5_core",
		"two channels, 900 pages given and 600 taken back under load, compressed completions, a failure of the firmware")
}

// vfScript is the shortest test of our responder in the guest: it answers, is killed, answers again, and ends.
const vfScript = f3Helpers + `
start
say ready $(grep '^ready' /tmp/out)
traffic 20 100
say answered
kill -9 $pid; wait $pid
say killed
start
traffic 5 20
stop
say stopped
need responder unbind $addr
ours_back() { [ -n "$(having 2)" ]; }
until_true 100 ours_back
say unbound
`

// newerScript runs the Linux driver on a ConnectX-6 Dx and, in a network namespace, on a virtual function of a
// ConnectX-5. Linux runs its loopback self-test, and our bench records the card's timestamps of probes that the other
// kernel answers.
const newerScript = pairHelpers + `
say up
show pf ethtool -i $dev
show vf there ethtool -i $far
show stamps ethtool -T $dev
show stampsvf there ethtool -T $far
for s in 16 56 64 777 1472; do pings 100 $s; done
need arp -s $peer 02:00:00:00:00:02
need there arp -s 10.9.0.2 02:00:00:00:00:01
settled stats ethtool -S $dev
turned() { ethtool -t $dev >/tmp/turned && there ethtool -t $far >>/tmp/turned; }
until_true 20 turned # it waits for its frame for 200 ms only
show turned cat /tmp/turned
say turned
need bench run -target $peer -iface $dev -driver afpacket -closed -count 500 -timestamps -timeout 60s -warmup 0s -self-test 0s -out /tmp/report
show bench cat /tmp/need
show report cat /tmp/report/report.json
say benched
need sysctl -w net.ipv4.ping_group_range="0 0"
need bench run -target $peer -iface $dev -transport socket -closed -count 100 -timestamps -timeout 60s -warmup 0s -self-test 0s -out /tmp/sock
show socket cat /tmp/sock/report.json
say "by socket"
need rmmod mlx5_core
say gone
`

// stamped is the part of the bench's report about the card's timestamps.
type stamped struct {
	Device struct {
		Backend string
		Notes   []string
	}
	Notes       []string
	Counts      struct{ Sent, Received int64 }
	Attribution struct {
		Points []struct{ Name, Clock string }
	}
	Series []struct {
		Name    string
		Summary struct {
			Count int64
			Min   int64 `json:"min_ns"`
			P50   int64 `json:"p50_ns"`
			Max   int64 `json:"max_ns"`
		}
	}
}

// judge lists the errors in a report of that many probes: a required series that is missing, has fewer samples than
// probes, or has impossible values; or a model labelled as a card.
func (s *stamped) judge(lines []string, probes int64, series, inForce string) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if err := json.Unmarshal([]byte(strings.Join(lines, "\n")), s); err != nil {
		return []string{err.Error()}
	}
	if s.Counts.Sent != probes || s.Counts.Received != probes {
		say("%d probes were sent, and %d answered, of %d", s.Counts.Sent, s.Counts.Received, probes)
	}
	if s.Device.Backend != "sim" || !strings.Contains(strings.Join(s.Device.Notes, "\n"), "not a card's") {
		say("the model's timestamps are taken for a card's: backend %s, %q", s.Device.Backend, s.Device.Notes)
	}
	if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, inForce) {
		say("%q, want %q", notes, inForce)
	}
	found := false
	for _, x := range s.Series {
		if x.Name != series {
			continue
		}
		found = true
		if m := x.Summary; m.Count != probes || m.Min <= 0 || m.Min > m.P50 || m.P50 > m.Max+m.Max/100 {
			say("%s: %+v, want %d samples above zero", series, m, probes)
		}
	}
	if !found {
		say("no series %q", series)
	}
	return wrong
}

// clock is the clock of a time in the rows of the slowest round trips.
func (s *stamped) clock(name string) string {
	for _, p := range s.Attribution.Points {
		if p.Name == name {
			return p.Clock
		}
	}
	return ""
}

func mlx5Newer(t *testing.T) {
	s := newScene(t)
	f, g := s.pair(mlx5Card, connectX(mlx5sim.ConnectX6Dx), connectX(mlx5sim.ConnectX5VF))
	v := g.model.(*mlx5sim.Model)
	before, writes := 0, uint64(0)
	counters := settling{}
	r, err := s.play(Machine{
		Limit: 120 * time.Second, Files: s.programs("bench"), Script: "module=mlx5_core peer=10.9.0.1\n" + newerScript,
		Say: func(key, _ string, r Result) error {
			var owned int
			g.port.Hold(func() { owned, _ = v.Pages() })
			switch key {
			case "up":
				before = owned
				v.AskPages(50)
			case "stats":
				return counters.disagree(t, key, f.agree(mlx5Card, numbers(r["stats"]), false))
			case "benched":
				if owned != before+50 {
					return fmt.Errorf("the virtual function's firmware had %d pages, asked for 50, and has %d", before,
						owned)
				}
			case "gone":
				// the end of QEMU resets the function and its counters
				g.port.Hold(func() { writes = v.Counters().PortWrites })
				var pf int
				f.port.Hold(func() { pf, _ = f.model.(*mlx5sim.Model).Pages() })
				if owned != 0 || pf != 0 {
					return fmt.Errorf("the driver left %d pages with the physical, %d with the virtual function", pf,
						owned)
				}
			}
			return nil
		},
	}, "pf", "vf", "turned", "bench")
	if err == nil {
		for key, want := range map[string][]string{
			"pf":     {"driver: mlx5_core", "firmware-version: 22.36.1010", "bus-info: 0000:00:04.0"},
			"vf":     {"driver: mlx5_core", "firmware-version: 16.35.2000", "bus-info: 0000:00:05.0"},
			"stamps": {"hardware-transmit", "hardware-receive", "hardware-raw-clock"}, "stampsvf": {"hardware-transmit", "hardware-receive"},
			"turned": {"Loopback Test\t 0"},
		} {
			for _, w := range want {
				if !strings.Contains(strings.Join(r[key], "\n"), w) {
					t.Errorf("%s: no %q in %q", key, w, r[key])
				}
			}
		}
		var report stamped
		for _, wrong := range report.judge(r["report"], 500, "hardware",
			"kernel receive false, kernel send true, card receive true, card send true") {
			t.Error("AF_PACKET: ", wrong)
		}
		// The rows of the slowest have the card's timestamps, because its clock can be read.
		for _, name := range []string{"left the NIC", "reached the NIC"} {
			if clock := report.clock(name); clock != "this host's card" {
				t.Errorf("%s by %q", name, clock)
			}
		}
		// The card's timestamps are turned off again, as before.
		for _, wrong := range new(stamped).judge(r["socket"], 100, "kernel",
			"kernel receive true, kernel send true, card receive false, card send false") {
			t.Error("socket: ", wrong)
		}
		if writes == 0 {
			t.Error("Linux wrote no port register of the virtual function: then the model need not take that")
		}
	}
	must.OK(t, err)
	proven(t, "F2", "Linux mlx5_core",
		"a ConnectX-6 Dx and a virtual function of a ConnectX-5: pings, self-tests, counters, stamps of 600 probes")
}
