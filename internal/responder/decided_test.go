package responder

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// What settings decide: the rights that are kept, the reason to stay root, the services, the reflector, and what a card
// that carries messages or frames has against them. Only what the settings change is recorded.
func TestSettingsDecide(t *testing.T) {
	var text strings.Builder
	clock := latency.FixedClock(latency.ClockInfo{Frequency: 2e9}, 0, time.Unix(0, 0))
	decided := func(sets []string) (all []string) {
		s := newSettings([]int{0, 1, 2, 3})
		for _, set := range append([]string{"nic.device=eth0", "cpu.cores=[2]"}, sets...) {
			must.OK(t, s.table.Set(set))
		}
		must.OK(t, s.table.Apply())
		add := func(name string, v ...any) { all = append(all, "  "+name+": "+fmt.Sprintln(v...)) }
		n := s.needs()
		for i, name := range n.Write {
			if strings.HasPrefix(name, "/dev/ptp") { // this machine's
				n.Write = n.Write[:i]
				break
			}
		}
		add("needs", fmt.Sprintf("%+v", n))
		add("root", s.needsRoot())
		add("services", s.services())
		r := s.respond.stamp.reflector()
		r.Key = nil
		add("reflector", fmt.Sprintf("%+v, asked %t", r, s.stampAsked()))
		var c fastpath.Config
		s.respond.stamp.timed(&c, clock)
		add("ticks", c.TicksPerSecond, c.Reflector.Idle)
		add("not xdp", s.kernelCannot())
		add("frames", s.fits(nic.Info{Driver: "ixgbe"}, false))
		add("messages", s.fits(nic.Info{Driver: "efa"}, true))
		add("now", s.checkMessages())
		add("ready", s.ready(nic.Info{Driver: "x", Device: "d", MAC: "m", Via: "verbs"}))
		return all
	}
	usual := decided(nil)
	fmt.Fprintf(&text, "usual\n%s", strings.Join(usual, ""))
	const addresses = `respond.addresses=["10.0.0.2/24", "fd00::2/64"]`
	for _, sets := range [][]string{
		{addresses}, {"trust.confine=light"}, {"stats.report=/var/lib/rebound/run"}, {"cpu.isolate=true"},
		{"cpu.priority=50"},
		{"cpu.realtime_guard=lift", "cpu.priority=50"}, {"nic.driver=xdp", addresses}, {"nic.driver=xdp", "nic.pin=p"},
		{"nic.driver=mlx5"}, {"nic.driver=efa"}, {"nic.driver=efa", "respond.stamp_auth_ports=[863]"}, {"nic.driver=efa", addresses},
		{"nic.driver=ixgbe", "nic.device=0000:03:00.0", "nic.unsafe_no_iommu=true"}, {"nic.device=0000:03:00.0"},
		{"respond.stamp_ports=[862]"}, {"respond.stamp_messages=true", addresses},
		{"respond.stamp_mode=stateful", "respond.stamp_ports=[862]"}, {"respond.stamp_tlvs=true"},
		{"respond.stamp_location=false"}, {"respond.stamp_dscp=[0, 46]"}, {"respond.stamp_idle=30s"},
		{"respond.handover=10.0.0.2:18515", addresses},
	} {
		fmt.Fprintln(&text, strings.Join(sets, ", "))
		for i, line := range decided(sets) {
			if line != usual[i] {
				text.WriteString(line)
			}
		}
	}
	endpoint := func(service nic.Service, qpn uint32) nic.Endpoint {
		return nic.Endpoint{Service: service, Address: nic.Address{GID: netip.MustParseAddr("fe80::1"), QPN: qpn,
			QKey: 17}}
	}
	endpoints := messenger{all: []nic.Endpoint{endpoint(nic.EchoUD, 5), endpoint(nic.STAMPSRD, 6),
		endpoint(nic.EchoUD, 7)}}
	fmt.Fprintln(&text, readyMessages(nic.Info{Driver: "efa", Device: "d"}, endpoints, nil))
	golden.Equal(t, "testdata/decided.txt", text.String())
}

// messenger has these queue pairs.
type messenger struct {
	nic.Messenger
	all []nic.Endpoint
}

func (m messenger) Endpoints() []nic.Endpoint { return m.all }
