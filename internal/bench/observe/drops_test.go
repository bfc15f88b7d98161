package observe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A responder's refusals and its device's drops are read from its page, by reason, summed over all queues.
func TestReadResponder(t *testing.T) {
	round := 0
	page := func(w http.ResponseWriter, r *http.Request) {
		round++
		fmt.Fprintf(w, `# TYPE rebound_refused_total counter
rebound_refused_total{queue="0",reason="rate"} %d
rebound_refused_total{queue="1",reason="rate"} 4
rebound_refused_total{queue="0",reason="length"} 2
# TYPE rebound_device_trouble_total counter
rebound_device_trouble_total{kind="rx_dropped"} %d
rebound_device_trouble_total{kind="resets"} 9
`, 10*round, round)
	}
	url := serve(t, page)
	from := Source{Responder: url}
	before, after := must.Get(from.Read())(t), must.Get(from.Read())(t)
	if !Counted(after.Drops, report.DroppedThere) || after.There.Restarted(before.There) {
		t.Fatal(after)
	}
	got := report.AddDrops(nil, from.Grown(before, after))
	want := []report.Drop{{Place: report.RefusedThere, By: "responder: rate", Frames: 10},
		{Place: report.DroppedThere, By: "responder: rx_dropped", Frames: 1}}
	check.Same(t, got, want, "%+v")
	kernel := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "# TYPE rebound_refused_total counter\nrebound_refused_total{queue=\"all\",reason=\"rate\"} 1\n"+
			"# TYPE rebound_device_own_total counter\nrebound_device_own_total{counter=\"interface_rx_dropped\"} 5\nrebound_device_own_total{counter=\"other\"} 7\n")
	})
	there := report.Drop{Place: report.DroppedThere, By: "responder: interface_rx_dropped", Frames: 5}
	if d, _, err := ReadResponder(kernel); err != nil || !slices.Contains(d, there) || len(d) != 2 ||
		!Counted(d, report.DroppedThere) || Counted(d[:1], report.DroppedThere) {
		t.Errorf("of xdp: %v, %v", d, err)
	}
	busy := 2
	refusing := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if busy--; busy >= 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		page(w, r)
	})
	if d, _, err := ReadResponder(refusing); err != nil || len(d) != 3 {
		t.Errorf("a page that refuses twice: %v, %v", d, err)
	}
	other := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "up 1") })
	for _, bad := range []string{other, url + "/\x7f"} {
		_, _, err := ReadResponder(bad)
		check.Fails(t, bad, err, nil)
	}
}

// A page with too many reasons, too long ones, or what is no count is refused.
func TestPageIsBounded(t *testing.T) {
	reasons := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("rebound_refused_total{reason=\"r%d\"} 1\n", i)
		}
		return text
	}
	of := func(values ...string) (text string) {
		for i, v := range values {
			text += fmt.Sprintf("rebound_refused_total{queue=\"%d\",reason=\"rate\"} %s\n", i, v)
		}
		return text
	}
	const most, bad = "9007199254740991", "want a count"
	for _, c := range []struct {
		status     int
		text, says string
	}{
		{200, reasons(200), ""},
		{200, reasons(201), "has more than 200 values of reason, or one of more than 100 bytes"},
		{200, "rebound_refused_total{reason=\"" + strings.Repeat("x", 100) + "\"} 1\n", ""},
		{200, "rebound_refused_total{reason=\"" + strings.Repeat("x", 101) + "\"} 1\n", "has more than 200 values"},
		{200, of("0", most), ""}, {200, of("1", most), "adds up to 9007199254740992: " + bad},
		{200, of("-1"), "is -1: " + bad},
		{200, of("NaN"), "is NaN: " + bad}, {200, of("9007199254740992"), bad}, {404, of("1"), ": 404 Not Found"},
		{200, "rebound_refused_total{", "responder's metrics: http"}, {200, "up 1\n", "no rebound_refused_total (give"},
		{200, of("1") + "# TYPE rebound_device_own_total counter\n" +
			"rebound_device_own_total{counter=\"interface_rx_dropped\"} -1\n", bad},
		{200, of("1") + "# TYPE rebound_device_trouble_total counter\n" +
			"rebound_device_trouble_total{kind=\"rx_dropped\"} -1\n", bad},
	} {
		_, _, err := ReadResponder(serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			fmt.Fprint(w, "# TYPE rebound_refused_total counter\n"+c.text)
		}))
		if c.says == "" {
			must.OK(t, err)
		} else {
			check.Fails(t, c.says, err, nil, c.says)
		}
	}
}

// serve returns the URL of a page.
func serve(t *testing.T, page http.HandlerFunc) string {
	s := httptest.NewServer(page)
	t.Cleanup(s.Close)
	return s.URL
}

func TestSoftnetDropped(t *testing.T) {
	stat := "0000f1 00000003 00000000 0 0 0 0 0 0 0 0 0 0\n00001a2b 00000010 00000001 0 0 0 0 0 0 0 0 0 1\n\n"
	check.Equal(t, softnetDropped([]byte(stat)), 19, "%d frames")
}

// A counter that starts again from 0 has grown by its value. One whose first reading failed gives no result.
func TestGrown(t *testing.T) {
	d := func(a, b int64) []report.Drop {
		return []report.Drop{{Place: report.DroppedHere, By: "ring", Frames: a},
			{Place: report.NotSent, By: "ring", Frames: b}}
	}
	for _, c := range []struct{ before, after, want []report.Drop }{{d(1, 2), d(5, 2), d(4, 0)},
		{d(9, 0), d(3, 1), d(3, 1)}, {nil, d(2, 3), nil}} {
		check.Same(t, (Source{}).Grown(Reading{Drops: c.before}, Reading{Drops: c.after}), c.want, "%v")
	}
}

// The counters of a restarted responder start at 0, even if they have since exceeded the earlier values. A restart of
// its device is detected by its restart counts, even if both readings are in the middle of it.
func TestRestarted(t *testing.T) {
	type life struct{ resets, finished, start int } // finished is -1 for a responder that does not count it
	var now life
	rate := 0
	from := Source{Responder: serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `# TYPE rebound_refused_total counter
rebound_refused_total{queue="0",reason="rate"} %d
# TYPE rebound_device_trouble_total counter
rebound_device_trouble_total{kind="rx_dropped"} 1
rebound_device_trouble_total{kind="resets"} %d
# TYPE process_start_time_seconds gauge
process_start_time_seconds %d
`, rate, now.resets, now.start)
		if now.finished >= 0 {
			fmt.Fprintf(w, "# TYPE rebound_device_own_total counter\nrebound_device_own_total{counter=\"restarts_finished\"} %d\n", now.finished)
		}
	})}
	for _, c := range []struct {
		name          string
		before, after life
		restarted     bool
		refused       int64
	}{
		{"nothing", life{2, 2, 1000}, life{2, 2, 1000}, false, 4},
		{"nothing of an older responder", life{2, -1, 1000}, life{2, -1, 1000}, false, 4},
		{"the process", life{2, 2, 1000}, life{0, -1, 2000}, true, 9},
		{"the device", life{2, 2, 1000}, life{3, 3, 1000}, true, 4},
		{"the device, from before", life{3, 2, 1000}, life{3, 3, 1000}, true, 4},
		{"the device, beyond the end", life{2, 2, 1000}, life{3, 2, 1000}, true, 4},
		{"the device, all the time", life{3, 2, 1000}, life{3, 2, 1000}, true, 4},
	} {
		now, rate = c.before, 5
		before := must.Get(from.Read())(t)
		now, rate = c.after, 9
		after := must.Get(from.Read())(t)
		check.Equal(t, after.There.Restarted(before.There), c.restarted, c.name+" was restarted: %v")
		check.Equal(t, from.Grown(before, after)[0].Frames, c.refused, c.name+" was restarted: %d refused")
	}
}

// counted is a device or a socket with the given counters.
type counted struct {
	nic.Port
	info  nic.Info
	stats nic.Stats
	err   error
	drops uint64
}

func (c *counted) Info() nic.Info                { return c.info }
func (c *counted) ReadStats(to *nic.Stats) error { *to = c.stats; return c.err }
func (c *counted) Drops() (uint64, error)        { return c.drops, c.err }
func (c *counted) Messages() int64               { return 4 }

// The counters of a device or a socket by their place, what they cover, and what is known if they cannot be read.
func TestCountersOfThisHost(t *testing.T) {
	stats := nic.Stats{RxDropped: 5, TxErrors: 6, Resets: 2, Extra: map[string]uint64{sendResets: 3,
		nic.RestartsFinished: 1}}
	for _, c := range []struct {
		name string
		from Source
		want string // without the kernel's own
		here Life
	}{
		{"card", Source{Device: &counted{info: nic.Info{Backend: nic.Silicon}, stats: stats}},
			"unknown none 0 false; dropped here NIC: rx_dropped 5 false; not sent NIC: tx_errors 6 true", Life{resets: 5, restarting: true}},
		{"card that does not count", Source{Device: &counted{info: nic.Info{Backend: nic.Silicon, NoDropCounter: true},
			stats: stats}}, "unknown none 0 false; not sent NIC: tx_errors 6 true", Life{resets: 5, restarting: true}},
		{"ring of the kernel", Source{Device: &counted{info: nic.Info{Backend: nic.Socket}, stats: nic.Stats{RxDropped: 5}}},
			"unknown none 0 false; dropped here ring: rx_dropped 5 true; not sent ring: tx_errors 0 true", Life{}},
		{"device that fails", Source{Device: &counted{err: nic.ErrGone}}, "unknown none 0 false", Life{}},
		{"socket", Source{Socket: &counted{drops: 7}}, "dropped here socket: sk_drops 7 true; unknown none 0 false", Life{}},
		{"socket that fails", Source{Socket: &counted{err: nic.ErrGone}}, "unknown none 0 false", Life{}},
		{"nothing", Source{}, "", Life{}},
	} {
		r := must.Get(c.from.Read())(t)
		var all []string
		for _, d := range r.Drops {
			if !strings.HasPrefix(d.By, "kernel backlog") {
				all = append(all, fmt.Sprint(d.Place, " ", d.By, " ", d.Frames, " ", d.Ours))
			}
		}
		check.Equal(t, strings.Join(all, "; "), c.want, c.name+": %s")
		check.Equal(t, r.Here, c.here, c.name+": %v")
		_, socket := c.from.Socket.(*counted)
		check.Equal(t, r.delivered == 4, socket, c.name+" delivered messages: %t")
	}
	for place, by := range map[report.Place][]string{
		report.DroppedHere:  {"socket: sk_drops", "ring: rx_dropped", "NIC: rx_dropped"},
		report.DroppedThere: {"responder: rx_dropped", "responder: interface_rx_dropped"},
		report.RefusedThere: {"responder: rate"}, report.Unknown: {"none", "x"}, report.NotSent: nil} {
		for _, name := range []string{"socket: sk_drops", "ring: rx_dropped", "NIC: rx_dropped",
			"responder: rx_dropped", "responder: interface_rx_dropped", "responder: rate", "target: rate", "none",
			"x"} {
			at := place
			if strings.HasSuffix(name, "dropped") || place == report.NotSent {
				at = report.DroppedHere
			}
			want := slices.Contains(by, name) || place == report.Unknown && at == place ||
				place == report.RefusedThere && at == place && strings.HasPrefix(name, "responder")
			check.Equal(t, Counted([]report.Drop{{Place: at, By: name}}, place), want, string(place)+", "+name+": %t")
		}
	}
}

// Echo replies that the socket delivered were not rejected, and a veth pair's driver counts what a full ring drops.
func TestGrownTwice(t *testing.T) {
	d := func(place report.Place, by string, n int64) report.Drop {
		return report.Drop{Place: place, By: by, Frames: n}
	}
	at := func(factor int64) Reading {
		return Reading{delivered: 3 * factor, Drops: []report.Drop{d(report.DroppedHere, "ring: rx_dropped", 4*factor),
			d(report.DroppedHere, "interface veth0: rx_dropped", 6*factor),
			d(report.NotSent, "interface veth0: rx_dropped", factor),
			d(report.Unknown, "kernel: "+echoReplies, 5*factor), d(report.Unknown, "kernel: "+echoReplies6, 2*factor)}}
	}
	for _, c := range []struct{ driver, model, want string }{{"afxdp", "veth", "[4 2 1 2 0]"},
		{"afxdp", "mlx5", "[4 6 1 2 0]"}, {"afpacket", "veth", "[4 6 1 2 0]"}} {
		from := Source{Device: &counted{info: nic.Info{Driver: c.driver, Model: c.model}}}
		var all []int64
		for _, d := range from.Grown(at(1), at(2)) {
			all = append(all, d.Frames)
		}
		check.Equal(t, fmt.Sprint(all), c.want, c.driver+" of "+c.model+": %s")
	}
}
