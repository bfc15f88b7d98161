package measure

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// varied returns settings with values of -ab.
func varied(t *testing.T, list string) Settings {
	t.Helper()
	return must.Get(Default().Vary(list))(t)
}

// planned is a plan of quick runs over a card's model.
func planned(t *testing.T, variants ...Settings) Plan {
	o := Plan{Variants: variants, Runs: 2, Count: 100, Core: -1, Out: t.TempDir(), Stop: new(atomic.Bool),
		Log: slog.New(slog.DiscardHandler), ProgressTo: io.Discard}
	o.NIC = cards.Config{Push: "auto"}
	o.NIC.RingSize = 256
	return o
}

// A session over a card: two variants alternate, and their reports have what the card and the target did.
func TestRunOverCard(t *testing.T) {
	var probes atomic.Int32 // in this slice
	device := echohost.Start(t, netip.MustParseAddr("10.0.0.2"), func(_, to uint16, b []byte) [][]byte {
		if n := probes.Add(1); to == 8 && n <= 10 { // the second reply to a slice's last probe may come too late
			return [][]byte{b, b}
		}
		return [][]byte{b}
	})
	base := "iface=" + device + ",transport=raw,driver=auto,source=10.0.0.1,target=10.0.0.2,proto=udp,timeout=10s,"
	o := planned(t, varied(t, base+"port=7,name=once"), varied(t,
		base+"port=8,name=twice,source-ports=2,size=100,rate=2000"))
	before := 0
	o.Paired, o.Before = true, func(*Series) error { before++; probes.Store(0); return nil }
	out, err := Run(o)
	must.OK(t, err)
	var b strings.Builder
	for _, rep := range out.Reports {
		rep.Warnings = slices.DeleteFunc(rep.Warnings, func(w string) bool {
			return strings.HasPrefix(w,
				report.NotOffered)
		})
		rep.Device.Counters, rep.Device.Notes = nil, rep.Device.Notes[:1]
		fmt.Fprintf(&b, "%s\n%+v\n%+v\n%q\n%q\n%+v\n%d runs, %d places, %d looks\n", rep.Label, rep.Traffic,
			rep.Counts, rep.Notes,
			rep.Warnings, rep.Device, len(rep.Runs), len(rep.Schedule.Places), rep.Schedule.Looks)
		check.Equal(t, must.Get(report.Read(rep.Dir))(t).Session, out.Reports[0].Session, "session %q")
	}
	fmt.Fprintf(&b, "folders %q %q, %d calls before slices\n", filepath.Base(out.Reports[0].Dir),
		filepath.Base(out.Reports[1].Dir), before)
	golden.Equal(t, "testdata/run.txt", strings.ReplaceAll(b.String(), device, "DEVICE"))
}

// Messages go from one queue pair for each service to those whose addresses the target hands over. What does not fit
// says why.
func TestMessages(t *testing.T) {
	needs.Long(t)
	log := slog.New(slog.DiscardHandler)
	_, cable, near := simtest.Serve(t, efasim.New(efasim.Options{MAC: nearMAC}))
	model, _, there := simtest.Serve(t, efasim.New(efasim.Options{MAC: farMAC}))
	model.Connect(cable)
	c := cards.Config{Driver: "efa", Push: "auto"}
	c.Device, c.Log, c.Services = there, log, []nic.Service{nic.EchoUD, nic.EchoSRD, nic.STAMPUD}
	far := must.Get(c.OpenMessenger())(t)
	hand := must.Get(handover.Listen(netip.MustParseAddrPort("127.0.0.1:0"), far, log))(t)
	config := fastpath.Config{Clock: new(atomic.Pointer[fastpath.Clock])}
	config.Clock.Store(&fastpath.Clock{Rate: 1 << 32})
	answers := must.Get(fastpath.NewMessages(config))(t)
	var stop atomic.Bool
	served := make(chan error, 1)
	go func() { served <- far.Serve(0, &stop, answers) }()
	defer func() {
		stop.Store(true)
		check.OK(t, <-served)
		check.OK(t, hand.Close())
		check.OK(t, far.Close())
	}()
	to := func(device, service, more string) Settings {
		port := "port=1" // which nothing listens on
		for each := range strings.SplitSeq(hand.String(), ",") {
			if name, address, _ := strings.Cut(each, "@"); name == service {
				port = "port=" + address[strings.LastIndex(address, ":")+1:]
			}
		}
		s := varied(t, "target=127.0.0.1,timeout=10s,iface="+device+",proto="+service+","+port+more)
		must.OK(t, s.Complete())
		return s
	}
	o := planned(t, to(near, "ud", ",name=a"), to(near, "ud", ",name=b,size=100"), to(near, "srd", ",name=c"),
		to(near, "stamp-ud", ",name=d,size=48"))
	o.Runs, o.Count = 1, 5
	out, err := Run(o)
	must.OK(t, err)
	for i, size := range []int{8, 100, 8, 48} {
		rep, s := out.Reports[i], o.Variants[i]
		check.Equal(t, rep.Counts.Received, 5, s.Name+": %d replies")
		want := report.Traffic{Target: fmt.Sprint("127.0.0.1:", s.Port), Protocol: s.Protocol(), FrameSize: size,
			Mode: "closed", Outstanding: 1, Transport: "message"}
		check.Equal(t, rep.Traffic, want, s.Name+": %+v")
		check.Equal(t, rep.Device.Driver, "efa", "%s")
	}
	frames := echohost.Start(t, netip.MustParseAddr("10.0.0.2"), func(_, _ uint16, b []byte) [][]byte { return nil })
	for _, c := range []struct {
		v    Settings
		says string
	}{
		{to(near, "ud", ",size=9000"), "-size 9000: vfio-user:"},
		{to(near, "srd", ",size=20000"), "-size 20000: vfio-user:"},
		{to(near, "stamp-srd", ""), "connection refused (the responder's address is in its respond.handover;"},
		{to(frames, "ud", ""), "is not an EFA"},
	} {
		set, err := Open(planned(t).Options, []Settings{c.v})
		check.Fails(t, c.says, err, nil, c.says)
		set.Close()
	}
}

// What cannot be opened says why, and which setting to change.
func TestOpenFails(t *testing.T) {
	device := echohost.Start(t, netip.MustParseAddr("10.0.0.2"), func(_, _ uint16, b []byte) [][]byte { return nil })
	card := "iface=" + device + ",transport=raw,driver=auto,"
	for _, c := range [][2]string{
		{card + "target=10.0.0.2",
			"is not a kernel interface, so it has no routes: set -source"},
		{card + "target=10.0.0.2,source=10.0.0.1,size=9000",
			"9000 bytes; probes of icmp over IPv4 have 60 to 1514 here"},
		{card + "target=10.0.0.2,source=10.0.0.1,driver=mlx5",
			"8086:10fb rev 01 is not a ConnectX-4 or later"},
		{"target=127.0.0.1,transport=raw,driver=afpacket",
			"carries no frames to a peer: use -transport socket"},
		{"target=127.0.0.1,transport=socket,source=10.9.9.9",
			"source 10.9.9.9 is not an address of this host: a socket needs one"},
		{"target=127.0.0.1,transport=socket,iface=none0",
			"interface none0: no such interface"},
		{"target=127.0.0.1,transport=socket,responder-metrics=http://127.0.0.1:1/",
			"-responder-metrics: "},
		{"target=127.0.0.1,transport=socket,proto=udp,port=7,size=10",
			"10 bytes; probes of udp over IPv4 have 60 to 65550 here"},
	} {
		set, err := Open(planned(t).Options, []Settings{varied(t, c[0])})
		check.Fails(t, c[0], err, nil, c[1])
		set.Close()
	}
}
