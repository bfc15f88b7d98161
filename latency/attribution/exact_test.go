package attribution

import (
	"fmt"
	"math/rand/v2"
	"strings"
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
	beyond, all := Parts{HereSeen: 10_000}, []Cause{{Side: Here, Start: 1000, End: 3000}, {Side: Responder, Start: -1e6, End: 1e6}}
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

// How a row is compared with the responder's gaps: by this host's timestamps if there are any.
func TestSlow(t *testing.T) {
	row := func(change func(*Row)) Row {
		r := Row{At: 1000, RTT: 50_000, Times: make(Times, len(points)),
			Parts: Parts{HereSend: 700, Elsewhere: 39_300, Path: 10_000}}
		for i := range r.Times {
			r.Times[i] = NotKnown
		}
		change(&r)
		return r
	}
	usual := Usual{Path: 10_000, NIC: 1500, Send: 3000}
	for what, c := range map[string]struct {
		row  Row
		want slow
		path int64
	}{
		"no timestamps": {row(func(*Row) {}), slow{1_000_000, 1_048_500, 39_300}, 8500},
		"sent late":     {row(func(r *Row) { r.Times[1] = 500 }), slow{1_000_500, 1_048_500, 39_300}, 8500},
		"held up too":   {row(func(r *Row) { r.Times[1], r.Send = 500, 300 }), slow{1_000_500, 1_048_500, 39_200}, 8500},
		"left":          {row(func(r *Row) { r.Times[1], r.Times[2] = 500, 4000 }), slow{1_004_000, 1_048_500, 39_300}, 5500},
		"left at once":  {row(func(r *Row) { r.Times[2] = 0 }), slow{1_000_000, 1_048_500, 39_300}, 5500},
		"came":          {row(func(r *Row) { r.Times[7] = 45_000 }), slow{1_000_000, 1_045_000, 39_300}, 8500},
		"came at once":  {row(func(r *Row) { r.Times[7] = 0 }), slow{1_000_000, 1_000_000, 39_300}, 8500},
		"came before":   {row(func(r *Row) { r.Times[2], r.Times[7] = 9000, 8000 }), slow{1_009_000, 1_009_000, 39_300}, 5500},
		"waited": {row(func(r *Row) { r.Wait, r.Parts.HereSeen, r.Parts.HereNIC = 30_000, 20_000, 5000 }),
			slow{1_000_000, 1_048_500, 34_300}, 8500},
		"held up by the NIC": {row(func(r *Row) { r.NIC, r.Wait = 10_000, 5000 }), slow{1_000_000, 1_048_500, 24_300}, 8500},
		"all of it":          {row(func(r *Row) { r.Wait = 1e6 }), slow{1_000_000, 1_048_500, 0}, 8500},
	} {
		r := Result{Usual: usual, Rows: []Row{c.row}}
		check.Equal(t, r.slow(&c.row), c.want, what+": %+v")
		check.Equal(t, r.path(), c.path, what+": a path of %d ns")
	}
	r := Result{Usual: Usual{Path: 5, NIC: 9}}
	check.Equal(t, r.path(), 1, "a path of %d ns")
}

// A round trip waited for the gap that it met for longest, and for the backlog of that gap.
func TestWaited(t *testing.T) {
	for what, c := range map[string]struct {
		gaps []Interval // in order of their ends
		in   int        // -1: none
		most int64
	}{
		"none":                  {nil, -1, 0},
		"before":                {[]Interval{{Start: 100, End: 1000}}, -1, 0},
		"until just after":      {[]Interval{{Start: 100, End: 1001}}, 0, 1},
		"from the end":          {[]Interval{{Start: 2000, End: 3000}}, -1, 0},
		"just before the end":   {[]Interval{{Start: 1999, End: 3000}}, 0, 1},
		"all the time":          {[]Interval{{Start: 500, End: 3000}}, 0, 1000},
		"the longest":           {[]Interval{{Start: 1000, End: 1200}, {Start: 1500, End: 1800}, {Start: 1900, End: 2000}}, 1, 300},
		"the first":             {[]Interval{{Start: 1000, End: 1200}, {Start: 1500, End: 1700}}, 0, 200},
		"by what it met":        {[]Interval{{Start: 100, End: 1200}, {Start: 1500, End: 1750}}, 1, 250},
		"one around":            {[]Interval{{Start: 1000, End: 1200}, {Start: 3000, End: 3100}, {Start: 1100, End: 5000}}, 2, 900},
		"a backlog":             {[]Interval{{Start: 1000, End: 1400}, {Start: 1440, End: 1520}}, 0, 520},
		"too late for that":     {[]Interval{{Start: 1000, End: 1400}, {Start: 1441, End: 1521}}, 0, 400},
		"several":               {[]Interval{{Start: 1000, End: 1300}, {Start: 1320, End: 1400}, {Start: 1420, End: 1600}}, 0, 600},
		"of the gap's length":   {[]Interval{{Start: 1000, End: 1300}, {Start: 1320, End: 1400}, {Start: 1420, End: 1601}}, 0, 400},
		"none after the second": {[]Interval{{Start: 1000, End: 1300}, {Start: 1400, End: 1450}, {Start: 1460, End: 1500}}, 0, 300},
		"until the reply":       {[]Interval{{Start: 1000, End: 1900}, {Start: 1910, End: 2100}}, 0, 1000},
	} {
		in, most := (&alignment{}).waited(&slow{sent: 1000, seen: 2000}, c.gaps, longestOf(c.gaps))
		at := -1
		for i := range c.gaps {
			if in == &c.gaps[i] {
				at = i
			}
		}
		check.Equal(t, [2]int64{int64(at), most}, [2]int64{int64(c.in), c.most}, what+": %d")
	}
}

// The responder's gaps divide what this host did not cause, at the limits too. The round trip takes 200 µs more than
// usual.
func TestDivideByGaps(t *testing.T) {
	const more = 200_000
	for what, c := range map[string]struct {
		gap, bound, missed, start int64 // the gap's length, and when the responder began to record
		row                       Row
		want                      Parts
		seen                      int64 // by its thread
	}{
		"all of it":          {gap: 205_000, want: Parts{FarWait: more}, seen: 205_000},
		"nothing":            {want: Parts{Network: more}, seen: NotKnown},
		"an unrecorded rest": {gap: 195_000, want: Parts{FarWait: 195_000, Elsewhere: 5000}, seen: 195_000},
		"a longer one":       {gap: 194_999, want: Parts{FarWait: 194_999, Network: 5001}, seen: 194_999},
		"an eighth":          {gap: 175_000, want: Parts{FarWait: 175_000, Network: 25_000}, seen: 175_000},
		"more than that":     {gap: 174_999, want: Parts{Elsewhere: 174_999, Network: 25_001}, seen: NotKnown},
		"missing gaps":       {gap: 175_000, missed: 1, want: Parts{FarWait: 175_000, Elsewhere: 25_000}, seen: 175_000},
		"a coarse relation":  {gap: 205_000, bound: more / 4, want: Parts{FarWait: more}, seen: 205_000},
		"too coarse":         {gap: 205_000, bound: more/4 + 1, want: Parts{Elsewhere: more}, seen: 77},
		"not recorded":       {gap: 205_000, start: 1, want: Parts{Elsewhere: more}, seen: 77},
		"either host":        {gap: 205_000, row: Row{Wait: more}, want: Parts{Unknown: more}, seen: NotKnown},
		"this host's":        {row: Row{Wait: more, NIC: 3000}, want: Parts{HereSeen: more}, seen: NotKnown},
		"this host's NIC":    {row: Row{NIC: more}, want: Parts{HereNIC: more}, seen: NotKnown},
		"sent late, and more": {row: Row{Send: 60_000, Wait: 30_000, Parts: Parts{HereSend: 500}},
			want: Parts{HereSend: 60_500, HereSeen: 30_000, Network: 109_500}, seen: NotKnown},
		"half of it":      {gap: 100_000, row: Row{Wait: 100_000}, want: Parts{FarWait: 100_000, HereSeen: 100_000}, seen: NotKnown},
		"more than half":  {gap: 100_002, row: Row{Wait: 99_998}, want: Parts{FarWait: 100_002, HereSeen: 99_998}, seen: 100_002},
		"until seen":      {gap: 300_000, want: Parts{FarWait: more}, seen: 210_000},
		"a reported time": {gap: 205_000, row: Row{Times: Times{0, 0, -1, -1, 88, 99, -1, -1, 0}}, want: Parts{FarWait: more}, seen: 88},
	} {
		row := c.row
		row.At, row.RTT, row.Parts.Path = 1000, more+10_000, 10_000
		if row.Parts.Elsewhere = more - row.Parts.HereSend; row.Times == nil {
			row.Times = Times{0, row.Parts.HereSend, -1, -1, 77, -1, -1, -1, 0}
		}
		row.Errors = Times{0, 0, -1, -1, 9, -1, -1, -1, 0}
		r := Result{Rows: []Row{row}, Points: make([]Point, len(points)), Aligned: "aligned"}
		var gaps []Interval
		if c.gap > 0 {
			gaps = []Interval{{Start: 1_000_000, End: 1_000_000 + c.gap}}
		}
		l := Loop{From: 5000, Missed: c.missed, Start: 1_000_000 + row.Times[1] + c.start, End: 1e9}
		for range 2 { // a second time changes nothing
			r.addGaps([]slow{r.slow(&r.Rows[0])}, &alignment{bound: c.bound}, gaps, &l)
			got := r.Rows[0].Parts
			if got.Path -= 10_000; c.row.Parts.HereSend > 0 && got.HereSend > 0 {
				check.Equal(t, got.Sum(), more, what+": %d in all")
			}
			check.Equal(t, got, c.want, what+": %+v")
			check.Equal(t, r.Rows[0].Times[4], c.seen, what+": seen at %d")
			check.Equal(t, r.Points[4].Clock != "", c.seen != NotKnown && c.seen != 77 && c.seen != 88, what+": a clock: %t")
			if off := r.Rows[0].Errors[4]; r.Points[4].Clock != "" {
				check.Equal(t, off, c.bound, what+": %d ns off")
			}
		}
	}
}

// What had the responder's core while a round trip waited for a gap of 100 µs is its cause, if that is a tenth of it.
func TestCauseOfAGap(t *testing.T) {
	const from, to = 1_000_000, 1_100_000
	cause := func(start, end int64, core int, weak bool) Interval {
		return Interval{Start: start, End: end, Core: core, Text: "hog", Weak: weak}
	}
	gap := []Interval{{Start: from, End: to, Core: 1}}
	for what, c := range map[string]struct {
		causes []Interval
		gaps   []Interval
		far    int64 // of 100 µs the responder's
		want   int
	}{
		"a tenth":              {[]Interval{cause(from, from+10_000, 1, false)}, gap, 100_000, 1},
		"less":                 {[]Interval{cause(from, from+9_999, 1, false)}, gap, 100_000, 0},
		"begins before":        {[]Interval{cause(from-10_000, from+9_999, 1, false)}, gap, 100_000, 0},
		"ends after":           {[]Interval{cause(to-9_999, to+10_000, 1, false)}, gap, 100_000, 0},
		"a tenth at the end":   {[]Interval{cause(to-10_000, to+10_000, 1, false)}, gap, 100_000, 1},
		"without a gap":        {[]Interval{cause(to-9_999, to+10_000, 1, false)}, nil, 100_000, 1},
		"another core":         {[]Interval{cause(from, to, 2, false)}, gap, 100_000, 0},
		"all cores":            {[]Interval{cause(from, to, -1, false)}, gap, 100_000, 1},
		"a gap is none":        {[]Interval{{Start: from, End: to, Core: 1}}, gap, 100_000, 0},
		"twice":                {[]Interval{cause(from, from+20_000, 1, false), cause(to-20_000, to, 1, false)}, gap, 100_000, 1},
		"a longer one around":  {[]Interval{cause(to-20_000, to, 1, false), cause(to+50_000, to+60_000, 1, false), cause(0, 2*to, -1, false)}, gap, 100_000, 1},
		"a tenth of it there":  {[]Interval{cause(from, to, 1, false)}, gap, 10_000, 1},
		"less of it there":     {[]Interval{cause(from, to, 1, false)}, gap, 9_999, 0},
		"a counter":            {[]Interval{cause(from, from+50_000, 1, true), cause(7e6, 7e6+50_000, 1, true)}, gap, 100_000, 1},
		"it counts all day":    {[]Interval{cause(from, from+50_000, 1, true), cause(7e6, 7e6+50_001, 1, true)}, gap, 100_000, 0},
		"another has that all": {[]Interval{cause(from, from+50_000, 1, true), cause(7e6, 7e6+90_000, 1, false)}, gap, 100_000, 1},
	} {
		row := Row{Parts: Parts{FarWait: c.far, Network: 100_000 - c.far, Path: 10_000}, Causes: []int{0, 1}}
		r := Result{Rows: []Row{row}, Causes: []Count{{Side: Responder.String(), Text: "before", Probes: 1},
			{Side: Here.String(), Text: "tick", Probes: 1}}}
		l := Loop{Start: 0, End: 1e6, Intervals: c.causes}
		for range 2 { // a second time changes nothing
			r.addCauses([]slow{{sent: from - 5000, seen: to + 5000}}, &alignment{}, 1, c.gaps, &l)
			check.Equal(t, len(r.Causes)-1, c.want, what+": %d")
			causesAgree(t, &r)
			for _, k := range r.Causes {
				ours := k.Text == "tick" || k.Text == "hog" && k.Weak == c.causes[0].Weak
				check.Equal(t, ours, true, what+": "+k.Text+": %t")
			}
		}
	}
}

// What is said of each side if no cause is known, or as many as are printed.
func TestLinesOfSides(t *testing.T) {
	of := func(side Side, first, n int) (all []Count) {
		for i := range n {
			all = append(all, Count{Side: side.String(), Text: "hog", Name: string(rune('a' + first + i)), Probes: 9 - i})
		}
		return all
	}
	for what, c := range map[string]struct {
		r     Result
		parts Parts
		want  string // of the first side
	}{
		"sent late":      {parts: Parts{HereSend: 70}, want: "this host         sent late or held up while sending"},
		"NIC":            {parts: Parts{HereNIC: 70}, want: "this host         reply held up between the NIC and the polling thread"},
		"seen late":      {parts: Parts{HereSeen: 70}, want: "this host         reply waited for the polling thread"},
		"some of each":   {parts: Parts{HereSend: 30, HereSeen: 70}, want: "this host         sent late or held up while sending 30 %, reply waited for the polling thread 70 %"},
		"waited":         {parts: Parts{FarWait: 70}, want: "responder's host  waited for the polling thread"},
		"answered late":  {parts: Parts{FarAnswer: 79}, want: "responder's host  answering took long"},
		"both of that":   {parts: Parts{FarWait: 30, FarAnswer: 79}, want: "responder's host  waited for the polling thread 30 %, answering took long 70 %"},
		"there":          {parts: Parts{There: 70}, want: "network           on the way there"},
		"back":           {parts: Parts{There: 20, Back: 80}, want: "network           on the way there 20 %, on the way back 80 %"},
		"any direction":  {parts: Parts{Network: 70}, want: ""},
		"why":            {r: Result{Direction: "no clocks"}, parts: Parts{Network: 70}, want: "network           direction unknown: no clocks"},
		"both hosts":     {parts: Parts{Unknown: 70}, want: "unknown           both hosts' loops were interrupted"},
		"not reported":   {r: Result{FarLoop: "ICMP"}, parts: Parts{Elsewhere: 70}, want: "elsewhere         responder's host or network: ICMP"},
		"impossible":     {parts: Parts{Elsewhere: 70}, want: "elsewhere         responder's host or network: replies with impossible times"},
		"aligned":        {r: Result{FarLoop: "ICMP", Aligned: "by 9"}, parts: Parts{Elsewhere: 70}, want: "elsewhere         responder's host or network: too short for the alignment of the clocks or for the gaps that the responder recorded, or outside their time"},
		"a cause":        {r: Result{Causes: of(Here, 0, 1)}, parts: Parts{HereSend: 70}, want: "this host         hog: a 9"},
		"another's":      {r: Result{Causes: of(Responder, 0, 9)}, parts: Parts{HereSend: 70}, want: "this host         sent late or held up while sending"},
		"as many as fit": {r: Result{Causes: append(of(Responder, 9, 9), of(Here, 0, 6)...)}, parts: Parts{HereSend: 70}, want: "this host         hog: a 9, b 8, c 7, d 6, e 5, f 4"},
		"more":           {r: Result{Causes: of(Here, 0, 8)}, parts: Parts{HereSend: 70}, want: "this host         hog: a 9, b 8, c 7, d 6, e 5, f 4; 2 more"},
		"without a name": {r: Result{Causes: []Count{{Side: "this host", Text: "tick", Probes: 3, Weak: true}, {Side: "this host", Text: "irq", Probes: 2}}}, parts: Parts{HereSend: 70}, want: "this host         tick (weak hint, by counters): 3; irq: 2"},
	} {
		c.r.Rows, c.r.Probes, c.r.From, c.r.Usual = []Row{{Parts: c.parts}}, 1, 2000, Usual{Residence: 9}
		c.r.sum()
		lines := c.r.Lines()
		check.Contains(t, lines[0], "The 1 slowest (2.000 µs and more): "+c.r.Shares[0].Side+" 100 %.")
		check.Equal(t, strings.TrimPrefix(strings.Join(lines[1:], "|"), "  "), c.want, what+": %q")
	}
}

// The side of a round trip caused more than half of it, and the shares are of all that was beyond the usual.
func TestShares(t *testing.T) {
	r := Result{Usual: Usual{Residence: 10}, Rows: []Row{
		{Parts: Parts{FarWait: 50, FarAnswer: 10, Network: 50, Path: 500}},
		{Parts: Parts{FarWait: 49, FarAnswer: 10, Network: 51}}, {Parts: Parts{HereSend: 20, FarAnswer: 90}},
		{Parts: Parts{Path: 500}}}}
	r.sum()
	var got []string
	for _, row := range r.Rows {
		got = append(got, row.Side)
	}
	check.Same(t, got, []string{"unknown", "network", "responder's host", "unknown"}, "%q")
	check.Same(t, r.Shares, []Share{{"responder's host", 179. / 300, 1}, {"this host", 20. / 300, 0}, {"network", 101. / 300, 1},
		{"unknown", 0, 2}}, "%+v")
	r = Result{Rows: []Row{{}}}
	r.sum()
	check.Same(t, r.Shares, []Share{{"unknown", 0, 1}}, "%+v")
}

// Only what took longer than usual is attributed, from the slowest.
func TestSlowestOnly(t *testing.T) {
	of := func(took ...int64) (all []Probe) {
		for _, v := range took {
			p := ordinary()
			p.Seen = p.Intended + v
			all = append(all, p)
		}
		return all
	}
	usual := of(10_000, 10_000, 10_000)
	r := Explain(of(10_000, 10_001, 30_000, 9000, 20_000), usual, About{Total: 5, Epoch: 5000}, nil)
	var took []int64
	for _, row := range r.Rows {
		took = append(took, row.RTT)
	}
	check.Same(t, took, []int64{30_000, 20_000, 10_001}, "%d")
	check.Equal(t, [3]int64{int64(r.Probes), r.From, r.Rows[0].At}, [3]int64{3, 10_001, 1005}, "%d")
	for _, none := range [][2][]Probe{{of(10_000), of(10_000)}, {of(20_000), nil}, {nil, of(10_000)}} {
		check.Equal(t, Explain(none[0], none[1], About{Total: 5}, nil), nil, "%+v")
	}
}

// Means around percentiles are computed again from the rows if these go so far.
func TestRebuildBands(t *testing.T) {
	was := Band{Probes: 7, Parts: Parts{Path: 7}}
	for _, c := range []struct {
		rows  int
		total int64
		names []string
		want  string // probes and the mean
	}{
		{200, 1000, []string{"p50", "p90", "p99"}, "[7 0 20 199 4 19]"},
		{122, 1000, []string{"p90", "p99"}, "[20 199 4 19]"},
		{121, 1000, []string{"p90", "p99"}, "[7 0 4 19]"},
		{200, 999, []string{"p90", "p99"}, "[18 197 7 0]"},
		{200, 10_000, []string{"p99.9", "p99"}, "[4 19 20 199]"},
		{14, 1000, []string{"p99"}, "[4 19]"},
		{13, 1000, []string{"p99"}, "[7 0]"},
	} {
		r := Result{}
		for i := range int64(c.rows) {
			r.Rows = append(r.Rows, Row{Parts: Parts{FarWait: 2 * i}})
		}
		for _, n := range c.names {
			b := was
			b.Name = n
			r.Bands = append(r.Bands, b)
		}
		r.rebuildBands(c.total)
		var got []int64
		for _, b := range r.Bands {
			got = append(got, int64(b.Probes), b.Parts.FarWait)
			check.Equal(t, b.Parts.Path != 0, b.Probes == was.Probes, "it was kept: %t")
		}
		check.Equal(t, fmt.Sprint(got), c.want, fmt.Sprint(c, ": %s"))
	}
}

// The most frequent causes come first, those that no row has are left out, and rows refer to the same ones as before.
func TestSortCauses(t *testing.T) {
	r := Result{Causes: []Count{{"b", "x", "", false, 1}, {"a", "y", "2", false, 2}, {"a", "y", "1", false, 2}, {"a", "none", "", false, 0},
		{"a", "x", "", false, 3}}, Rows: []Row{{Causes: []int{0, 1, 2, 4}}, {Causes: []int{3, 4, 1}}, {Causes: []int{4, 2}}, {Causes: []int{3}}}}
	r.sortCauses()
	check.Same(t, r.Causes, []Count{{"a", "x", "", false, 3}, {"a", "y", "1", false, 2}, {"a", "y", "2", false, 2},
		{"b", "x", "", false, 1}}, "%v")
	for i, want := range [][]int{{0, 1, 2, 3}, {0, 2}, {0, 1}, nil} {
		check.Same(t, r.Rows[i].Causes, want, "%d")
	}
}
