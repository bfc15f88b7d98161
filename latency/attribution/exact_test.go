package attribution

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// What each side took is known to the ns, at the limits of what is certain too. Each round trip takes 100 µs more than
// usual.
func TestDivideExactly(t *testing.T) {
	const more = 100_000
	u := Usual{Send: 3000, Path: 9600, There: 4000, Back: 4000}
	for what, c := range map[string]struct {
		send, wait, far, there, clockError int64 // beyond the usual, of what can have caused it; -1: unknown
		want                               Parts
	}{
		"elsewhere":                {send: 60_000, wait: 10_000, far: -1, clockError: -1, want: Parts{HereSend: 60_000, HereSeen: 10_000, Elsewhere: 30_000}},
		"both of this host's":      {send: 60_000, wait: 80_000, far: -1, clockError: -1, want: Parts{HereSend: 60_000, HereSeen: 40_000}},
		"by clocks":                {wait: 100, far: 10_000, there: 30_000, clockError: 24_999, want: Parts{FarWait: 10_000, There: 20_000, HereSeen: 100, Back: 69_900}},
		"by the same clock":        {wait: 100, far: 10_000, there: 30_000, want: Parts{FarWait: 10_000, There: 20_000, HereSeen: 100, Back: 69_900}},
		"clocks too coarse":        {wait: 100, far: 10_000, there: 30_000, clockError: 25_000, want: Parts{FarWait: 10_000, HereSeen: 100, Network: 89_900}},
		"faster there than usual":  {wait: 30_000, far: 10_000, there: -3000, want: Parts{HereSeen: 30_000, Back: 70_000}},
		"all of it there":          {send: 20_000, wait: 30_000, far: 10_000, there: 3 * more, want: Parts{HereSend: 20_000, FarWait: 10_000, There: 70_000}},
		"no more than that":        {wait: 30_000, far: 3 * more, there: 3 * more, want: Parts{FarWait: more}},
		"either host":              {send: 50_000, wait: 20_000, far: 60_000, clockError: -1, want: Parts{HereSend: 40_000, FarWait: 30_000, Unknown: 30_000}},
		"either, sent as usual":    {send: 10_000, wait: 60_000, far: 60_000, clockError: -1, want: Parts{HereSend: 10_000, HereSeen: 30_000, FarWait: 30_000, Unknown: 30_000}},
		"both, together all of it": {wait: 30_000, far: 70_000, clockError: -1, want: Parts{HereSeen: 30_000, FarWait: 70_000}},
		"an eighth is ordinary":    {wait: 12_500, far: more, clockError: -1, want: Parts{FarWait: more}},
		"more than an eighth":      {wait: 12_501, far: more, clockError: -1, want: Parts{FarWait: 87_499, Unknown: 12_501}},
		"its own, an eighth":       {wait: more, far: 12_500, clockError: -1, want: Parts{HereSeen: more}},
		"its own, more than that":  {wait: more, far: 12_501, clockError: -1, want: Parts{HereSeen: 87_499, Unknown: 12_501}},
	} {
		p := ordinary()
		p.Seen += more
		p.Left, p.Looked, p.FarWait = p.Left+c.send, p.Seen-c.wait, c.far
		p.There, p.ClockError = u.There+c.there, c.clockError
		c.want.FarAnswer, c.want.Path = p.Residence, u.Path
		check.Equal(t, Divide(&p, &u), c.want, what+": %+v")
	}
}

// The usual round trip has the median of each part that is known, in whatever order the sample is.
func TestTypical(t *testing.T) {
	var sample []Probe
	for _, k := range []int64{4, 1, 3, 2, 0} {
		sample = append(sample, Probe{Intended: 1000, Sent: 1100 + k, Left: 1200 + 3*k, Seen: 9000 + 7*k,
			Residence: 400 + 9*k, There: 3000 + 11*k, Back: 4000 + 13*k, ClockError: 5, Reached: 6000 + 2*k})
	}
	want := Usual{RTT: 8014, Send: 104, NIC: 1908, Residence: 418, There: 3022, Back: 4026}
	want.Path = sample[3].rest()
	check.Equal(t, Typical(sample), want, "%+v")
	for i := range sample {
		sample[i].Residence, sample[i].ClockError, sample[i].Reached = -1, -1, 0
		sample[i].LeftNIC = 500
	}
	want.Send, want.NIC, want.Residence, want.There, want.Back, want.Path = 500, 0, 0, 0, 0, sample[3].rest()
	check.Equal(t, Typical(sample), want, "%+v")
	sample = sample[:1]
	sample[0].ClockError, sample[0].There, sample[0].Back = 0, -7, -8
	u := Typical(sample)
	check.Equal(t, [2]int64{u.There, u.Back}, [2]int64{0, 0}, "%d by clocks that differ")
	check.Equal(t, Typical(nil), Usual{}, "%+v")
}

// What this host can have caused is what went beyond the usual, and after the reply's timestamp if there is one.
func TestOwn(t *testing.T) {
	u := Usual{Send: 3000, NIC: 1500, Residence: 400}
	for what, c := range map[string]struct {
		left, leftNIC, looked, reached int64 // since it was sent; it was seen after 20 µs
		want                           [3]int64
	}{
		"as usual":                    {3000, 0, 20_000, 0, [3]int64{0, 0, 0}},
		"sooner than usual":           {2000, 2500, 20_000, 19_000, [3]int64{0, 0, 0}},
		"later":                       {5000, 0, 15_000, 0, [3]int64{2000, 0, 5000}},
		"later by the card":           {2000, 5000, 15_000, 0, [3]int64{2000, 0, 5000}},
		"on the way from the card":    {3000, 0, 19_900, 10_000, [3]int64{0, 8400, 100}},
		"waited for the loop":         {3000, 0, 3000, 10_000, [3]int64{0, 0, 8500}},
		"came as usual":               {3000, 0, 3000, 18_500, [3]int64{0, 0, 0}},
		"looked after it was seen":    {3000, 0, 20_001, 0, [3]int64{0, 0, 0}},
		"a timestamp after it's seen": {3000, 0, 3000, 30_000, [3]int64{0, 0, 0}},
	} {
		p := Probe{Sent: 7000, Left: 7000 + c.left, LeftNIC: c.leftNIC, Looked: 7000 + c.looked, Reached: c.reached,
			Seen: 27_000}
		send, card, wait := p.own(&u)
		check.Equal(t, [3]int64{send, card, wait}, c.want, what+": %d")
	}
	for answer, want := range map[int64]int64{0: 0, 400: 0, 401: 1} {
		b := (&Parts{FarAnswer: answer, Path: 9, HereSeen: 5}).Beyond(&u)
		check.Equal(t, b, Parts{FarAnswer: want, HereSeen: 5}, "beyond the usual: %+v")
	}
}

// The times of a round trip, those that are unknown, and the clocks that they are from.
func TestTimes(t *testing.T) {
	whole := Probe{Intended: 1000, Sent: 1100, Left: 1200, Looked: 9000, Seen: 11_100, There: 3000, Back: 7000,
		ClockError: 50, LeftNIC: 300, LeftNICError: 7, Reached: 9000, ReachedError: 8, FarWait: -1}
	for what, c := range map[string]struct {
		change  func(*Probe)
		at, off string
	}{
		"all":              {func(*Probe) {}, "[0 100 400 -1 3100 3100 -1 9100 10100]", "[0 0 7 -1 50 50 -1 8 0]"},
		"a residence":      {func(p *Probe) { p.Residence = 500 }, "[0 100 400 -1 3100 3600 -1 9100 10100]", "[0 0 7 -1 50 50 -1 8 0]"},
		"the same clock":   {func(p *Probe) { p.ClockError = 0 }, "[0 100 400 -1 3100 3100 -1 9100 10100]", "[0 0 7 -1 0 0 -1 8 0]"},
		"before it was":    {func(p *Probe) { p.There = -40 }, "[0 100 400 -1 100 100 -1 9100 10100]", "[0 0 7 -1 50 50 -1 8 0]"},
		"after it was":     {func(p *Probe) { p.There, p.Residence = 10_030, 100 }, "[0 100 400 -1 10000 10100 -1 9100 10100]", "[0 0 7 -1 50 50 -1 8 0]"},
		"no common clock":  {func(p *Probe) { p.ClockError = -1 }, "[0 100 400 -1 5100 5100 -1 9100 10100]", "[0 0 7 -1 5000 5000 -1 8 0]"},
		"a coarse clock":   {func(p *Probe) { p.ClockError = 5000 }, "[0 100 400 -1 5100 5100 -1 9100 10100]", "[0 0 7 -1 5000 5000 -1 8 0]"},
		"a better one":     {func(p *Probe) { p.ClockError = 4999 }, "[0 100 400 -1 3100 3100 -1 9100 10100]", "[0 0 7 -1 4999 4999 -1 8 0]"},
		"another protocol": {func(p *Probe) { p.Residence = -1 }, "[0 100 400 -1 -1 -1 -1 9100 10100]", "[0 0 7 -1 -1 -1 -1 8 0]"},
		"no timestamps":    {func(p *Probe) { p.LeftNIC, p.Reached = 0, 0 }, "[0 100 -1 -1 3100 3100 -1 -1 10100]", "[0 0 -1 -1 50 50 -1 -1 0]"},
	} {
		p := whole
		c.change(&p)
		at, off := p.times()
		check.Equal(t, fmt.Sprint(at), c.at, what+": %s")
		check.Equal(t, fmt.Sprint(off), c.off, what+", errors: %s")
	}
	r := Explain([]Probe{whole}, sampleOf(100), About{Total: 1000, Stamps: "card"}, nil)
	clocks := make([]string, len(r.Points))
	for i, p := range r.Points {
		clocks[i] = p.Clock
	}
	const own, far, card = "this host's cycle counter", "the responder's, synchronised", "this host's card"
	check.Same(t, clocks, []string{own, own, card, "", far, far, "", card, own}, "%q")
}

// A cause counts for a round trip if it overlaps a wait of its side for a tenth of the excess, and that side took as
// much of it.
func TestOverlapped(t *testing.T) {
	p := Probe{Intended: 1000, Left: 3000, Seen: 100_000, FarSeen: 500_000, Residence: 400}
	parts := Parts{HereSend: 500, HereSeen: 10_000, HereNIC: 5000, FarWait: 20_000}
	for _, c := range []struct {
		cause          Cause
		here, far, all int64 // beyond the usual
		change         func()
		want           bool
	}{
		{cause: Cause{Side: Here, Start: 1000, End: 2000}, here: 10_000, all: 10_000, want: true},
		{cause: Cause{Side: Here, Start: 0, End: 1999}, here: 10_000, all: 10_000},
		{cause: Cause{Side: Here, Start: 2001, End: 4000}, here: 10_000, all: 10_000},
		{cause: Cause{Side: Here, Start: 84_000, End: 86_000}, here: 10_000, all: 10_000, want: true},
		{cause: Cause{Side: Here, Start: 84_000, End: 85_999}, here: 10_000, all: 10_000},
		{cause: Cause{Side: Here, Start: 99_000, End: 200_000}, here: 10_000, all: 10_000, want: true},
		{cause: Cause{Side: Here, Start: 2500, End: 85_500}, here: 10_000, all: 10_000, want: true}, // 500 of each
		{cause: Cause{Side: Here, Start: 2501, End: 85_500}, here: 10_000, all: 10_000},
		{cause: Cause{Side: Here, Start: 0, End: 100_000}, here: 1000, all: 10_000, want: true},
		{cause: Cause{Side: Here, Start: 0, End: 100_000}, here: 999, all: 10_000},
		{cause: Cause{Side: Here, Start: 20_000, End: 30_000}},
		{cause: Cause{Side: Responder, Start: 479_000, End: 481_000}, far: 10_000, all: 10_000, want: true},
		{cause: Cause{Side: Responder, Start: 479_000, End: 480_999}, far: 10_000, all: 10_000},
		{cause: Cause{Side: Responder, Start: 500_000, End: 600_000}, far: 4000, all: 4000, want: true},
		{cause: Cause{Side: Responder, Start: 500_000, End: 600_000}, far: 4001, all: 4001},
		{cause: Cause{Side: Responder, Start: 0, End: 600_000}, far: 999, all: 10_000},
		{cause: Cause{Side: Network, Start: 0, End: 600_000}, all: 10_000},
	} {
		beyond := Parts{HereSeen: c.here, FarWait: c.far}
		beyond.Network = c.all - c.here - c.far
		got := overlapped(&p, &parts, &beyond, []Cause{c.cause})
		check.Equal(t, len(got) == 1, c.want, fmt.Sprintf("%+v of %d, %d, %d: %%t", c.cause, c.here, c.far, c.all))
	}
	on, none := parts, p
	on.HereSend, none.FarSeen = 0, 0
	beyond, all := Parts{HereSeen: 10_000}, []Cause{{Side: Here, Start: 1000, End: 3000}, {Side: Responder, End: 1e6}}
	check.Equal(t, len(overlapped(&p, &on, &beyond, all)), 0, "%d causes of what was sent in time")
	beyond = Parts{FarWait: 10_000}
	check.Equal(t, len(overlapped(&none, &parts, &beyond, all)), 0, "%d causes at a time that is not known")
}

// What a round trip may have waited for at any difference of the clocks is what it waits for at the ends of the ranges
// of differences.
func TestPossible(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 8))
	some, none := 0, 0
	for range 2000 {
		l := Loop{Start: -1e6, End: 11e6, From: 1000}
		var all []slow
		for range 1 + dice.IntN(50) {
			at, away := dice.Int64N(10e6), dice.Int64N(200_000)
			all = append(all, slow{sent: at, seen: min(at+away+dice.Int64N(50_000), 10e6), away: away})
		}
		first, last := all[0].sent, all[0].seen
		for _, s := range all {
			first, last = min(first, s.sent), max(last, s.seen)
		}
		gaps := map[int][]Interval{}
		for core := range 1 + dice.IntN(2) {
			at := int64(0)
			for range dice.IntN(6) {
				at += dice.Int64N(2e6)
				gaps[core] = append(gaps[core], Interval{Start: at, End: at + dice.Int64N(150_000)})
				at = gaps[core][len(gaps[core])-1].End
			}
		}
		from, to := l.Start-first, l.End-last
		of := 0
		for _, s := range all {
			if s.away > 2*l.From {
				of++
			}
		}
		want, sum, mostSum := make([]bool, len(all)), int64(0), int64(0)
		for i, s := range all {
			want[i] = s.away <= 2*l.From
		}
		for _, gaps := range gaps {
			type span struct{ row, from, to int64 }
			var spans []span
			sum = 0
			for i, s := range all {
				half := (s.away + 1) / 2
				drift := int64(mostDrift * float64(max(s.seen-first-(last-first)/2, -(s.seen-first-(last-first)/2))))
				for _, g := range gaps {
					a, b := max(g.Start-s.seen+half-drift, from), min(g.End-s.sent-half+drift, to)
					if g.End-g.Start >= half && a <= b && s.away > 2*l.From {
						spans, sum = append(spans, span{int64(i), a, b}), sum+b-a
					}
				}
			}
			mostSum = max(mostSum, sum/int64(of/inError+1))
			for _, e := range spans {
				for _, d := range []int64{e.from, e.to} {
					rows := map[int64]bool{}
					for _, s := range spans {
						if s.from <= d && d <= s.to {
							rows[s.row] = true
						}
					}
					if len(rows) > of/inError {
						for row := range rows {
							want[row] = true
						}
					}
				}
			}
		}
		got, n := l.possible(all, gaps)
		if mostSum > to-from {
			must.Equal(t, n, 0, "%d of too many")
			none++
			continue
		}
		some++
		must.Equal(t, n, of, "%d")
		must.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "%s")
	}
	if some < 100 || none < 10 {
		t.Errorf("%d with a result, %d without", some, none)
	}
}
