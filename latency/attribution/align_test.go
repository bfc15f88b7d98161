package attribution

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const epoch = int64(1_700_000_000e9)

// trips is how many round trips a plan has, so that p99 is among the slowest.
const trips = 50_000

// plan is a minute of probes that one side at a time delays: the responder's loop stops, this host's loop stops, or the
// link delays. The responder's clock is ahead by offset, and drifts. Times are in ns.
type plan struct {
	seed               uint64
	offset             int64
	drift              float64
	far, here, network int
	// the responder's loop stops strictly periodically for that long; at random times for random times if zero
	period, length int64
	short          int   // gaps of up to 60 µs beside, which explain nothing
	step, after    int64 // by the first the responder's clock is set forward, after the second
	until          int64 // the responder's loop stops only until then
	probes         int   // delayed by one gap, instead of one
	backlog        int64 // to answer each of them takes that part of the gap; nothing if zero
	during         int   // delayed by the link, with a gap of three quarters of that time within it
	card           int64 // a reply is seen so much later than by the card's timestamp in the mean, more or less
}

const minute = int64(60e9)

func (c plan) build() (*Result, *Loop, map[int64]Side) {
	if c.until == 0 {
		c.until = minute
	}
	dice := rand.New(rand.NewPCG(c.seed, uint64(c.offset)))
	sides := map[int64]Side{} // by round trip, all of which differ
	l := &Loop{From: 5000, Start: epoch + c.offset - 1e9, End: epoch + c.offset + minute + c.step + 1e9,
		How: "the kernel's tracepoints"}
	there := func(t int64) int64 {
		if t > c.after {
			t += c.step
		}
		return epoch + t + c.offset + int64(c.drift*float64(t))
	}
	var slow []Probe
	stop := func(from, to int64) {
		g := Interval{Start: there(from), End: there(to), Core: 1}
		l.Intervals = append(l.Intervals, g,
			Interval{Start: g.Start + 100, End: g.End - 100, Core: 1, Text: "polling thread descheduled on cpu 1",
				Name: "hog"})
	}
	add := func(side Side, intended, took int64) {
		p := ordinary()
		p.FarWait, p.Residence = -1, -1
		p.Intended, p.Sent, p.Left = intended, intended, intended+3000
		p.Seen = intended + 10_000 + dice.Int64N(3000) + took
		for ; sides[p.RTT()] != 0; p.Seen++ {
		}
		c.stamp(dice, &p)
		if p.Looked = p.Seen - 100; side == Here {
			p.Looked, p.Reached = p.Left, min(p.Reached, 10_000)
		}
		sides[p.RTT()] = side
		slow = append(slow, p)
	}
	for _, k := range dice.Perm(max(int(minute/max(c.period, 1e6)), c.far))[:c.far] {
		// The loop stopped before the probe came, and answered it at the end of the gap.
		at, took := dice.Int64N(c.until), 20_000+dice.Int64N(2_000_000)
		from := at + 5000 - dice.Int64N(took/4+1)
		if c.period != 0 {
			from = int64(k)*c.period + 1e6
			at = from + dice.Int64N(c.length/5) - 5000
			took = from + c.length - at - 5000
		} else {
			stop(from, at+5000+took)
		}
		add(Responder, at, took)
		for i := range c.probes { // they come while the loop is stopped
			part := took * int64(i+1) / int64(c.probes+1) / 2
			if c.backlog == 0 {
				add(Responder, at+part, took-part)
				continue
			}
			each := took / c.backlog
			done := took + int64(i+1)*each
			stop(at+5000+done-each*4/5, at+5000+done)
			add(Responder, at+part, done-part)
		}
	}
	for at := int64(1e6); c.period != 0 && at < minute; at += c.period {
		stop(at, at+c.length)
	}
	for range c.here {
		add(Here, dice.Int64N(minute), 20_000+dice.Int64N(2_000_000))
	}
	for range c.network {
		add(Network, dice.Int64N(minute), 20_000+dice.Int64N(2_000_000))
	}
	for k := range c.during { // the gap ends at the same time as the delay, begins then, or neither
		at, took := dice.Int64N(minute), 200_000+dice.Int64N(2_000_000)
		add(Network, at, took)
		from := at + 5000 + took/8*int64(k%3)
		stop(from, from+took*3/4)
	}
	for range 6000 { // ordinary gaps, which explain nothing
		at := there(dice.Int64N(minute))
		l.Intervals = append(l.Intervals, Interval{Start: at, End: at + 5000 + dice.Int64N(4000), Core: 1})
	}
	for range c.short {
		at := there(dice.Int64N(minute))
		l.Intervals = append(l.Intervals, Interval{Start: at, End: at + 5000 + dice.Int64N(55_000), Core: 1})
	}
	sample := sampleOf(1000)
	for i := range sample {
		sample[i].FarWait, sample[i].Residence = -1, -1
		c.stamp(dice, &sample[i])
	}
	return Explain(slow, sample, About{Total: trips, Epoch: epoch, FarLoop: "ICMP", Direction: "ICMP"}, nil), l, sides
}

// stamp adds the card's timestamp of the reply.
func (c *plan) stamp(dice *rand.Rand, p *Probe) {
	if c.card != 0 {
		p.Reached = p.Seen - p.Sent
		p.Seen += c.card/2 + dice.Int64N(c.card)
	}
}

// judge counts the rows that are attributed to the planted side, to another one, and to none.
func judge(r *Result, sides map[int64]Side) (right, wrong, none int) {
	for i := range r.Rows {
		switch row := &r.Rows[i]; row.Side {
		case sides[row.RTT].String():
			right++
		case Unknown.String(), Elsewhere.String():
			none++
		default:
			wrong++
		}
	}
	return right, wrong, none
}

func planted(offset int64, drift float64, far, here, network int) (*Result, *Loop, map[int64]Side) {
	return plan{seed: 1, offset: offset, drift: drift, far: far, here: here, network: network}.build()
}

// causesAgree checks that each cause counts the rows that have it.
func causesAgree(t *testing.T, r *Result) {
	t.Helper()
	rows := make([]int, len(r.Causes))
	for i := range r.Rows {
		for _, k := range r.Rows[i].Causes {
			rows[k]++
		}
	}
	for k, c := range r.Causes {
		check.Equal(t, rows[k], c.Probes, "rows with "+c.Text+" "+c.Name+": %d")
	}
}

// Whatever the clocks' difference and drift, round trips are attributed to the responder's host by its own gaps, and
// others are not.
func TestAddResponder(t *testing.T) {
	for _, c := range needs.Each(2, []struct {
		offset             int64
		drift              float64
		far, here, network int
	}{{0, 0, 600, 200, 200}, {300_123_456, 20e-6, 600, 200, 200}, {-700e6, -70e-6, 300, 0, 700},
		{-50e6, 1e-6, 1000, 0, 0}, {12_345, 0, 60, 40, 900}}) {
		r, l, sides := planted(c.offset, c.drift, c.far, c.here, c.network)
		before := rowTotals(r)
		for range 2 { // a second time changes nothing
			must.OK(t, r.AddResponder(l, trips, -1))
			causesAgree(t, r)
			addUp(t, r)
			right, wrong, _ := judge(r, sides)
			if n := len(r.Rows); right < 97*n/100 || wrong > n/100 {
				t.Errorf("%+v: %d right and %d wrong of %d; %s; %+v", c, right, wrong, n, r.Aligned, r.Shares)
			}
			if rowTotals(r) != before {
				t.Errorf("%+v: the rows' round trips changed", c)
			}
			if b := slowBand(r); c.far >= 300 && b.FarWait < 10*b.Elsewhere {
				t.Errorf("%+v: around p99: %+v", c, b)
			}
			if text := strings.Join(r.Lines(), "\n"); !strings.Contains(text,
				"polling thread descheduled on cpu 1: hog ") {
				t.Errorf("%+v: %s", c, text)
			}
		}
	}
}

// slowBand returns the parts of the round trips around p99.
func slowBand(r *Result) Parts {
	return r.Bands[slices.IndexFunc(r.Bands, func(b Band) bool { return b.Name == "p99" })].Parts
}

// Of the gaps of several cores, those of the core that explains most align the clocks.
func TestGapsOfCores(t *testing.T) {
	var by [2]int
	for i, part := range []int{1, 4} {
		r, l, _ := planted(300_123_456, 20e-6, 600, 100, 200)
		for k := range l.Intervals {
			if k/2%part != 0 { // a gap and its cause
				l.Intervals[k].Core = 2
			}
		}
		must.OK(t, r.AddResponder(l, trips, -1))
		must.Get(fmt.Sscanf(r.Aligned, "aligned by %d", &by[i]))(t)
	}
	if share := float64(by[1]) / float64(by[0]); share < 0.7 || share > 0.8 {
		t.Errorf("aligned by %d, and by %d if a quarter of the gaps is of another core", by[0], by[1])
	}
}

// addUp checks that the parts of each row add up to its round trip.
func addUp(t *testing.T, r *Result) {
	t.Helper()
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Parts.Sum() != row.RTT {
			t.Fatalf("%+v adds up to %d", row, row.Parts.Sum())
		}
	}
}

func rowTotals(r *Result) (sum int64) {
	for i := range r.Rows {
		sum += r.Rows[i].RTT
	}
	return sum
}

// If the responder's gaps explain few of the round trips or none, no alignment is invented. A stated bound of the
// clocks tells the sides, and so does a responder that is certainly the one that answered, if it has too few gaps to
// have caused more: at most one in twenty is attributed to a wrong side.
func TestAddResponderWithoutAlignment(t *testing.T) {
	needs.Long(t)
	for _, c := range []plan{{}, {far: 3}, {far: 5, offset: -900e6, drift: 70e-6}, {short: 20_000, offset: 999e6}} {
		c.here, c.network = 100, 900-c.far
		r, l, sides := c.build()
		if err := r.AddResponder(l, trips, -1); !errors.Is(err, errNotShown) || r.Aligned != "" {
			t.Errorf("%+v: %v; %s", c, err, r.Aligned)
		}
		if c.offset == 0 {
			must.OK(t, r.AddResponder(l, trips, 0))
			check.Contains(t, r.Aligned, "stated to differ by at most 0 ns")
			check.Equal(t, ofResponder(r), c.far > 0, "causes on its host: %t")
		}
		l.Same = true
		for range 2 {
			must.OK(t, r.AddResponder(l, trips, -1))
			check.Contains(t, r.Aligned, "not aligned, but")
			check.Equal(t, ofResponder(r), false, "causes on its host: %t")
			addUp(t, r)
			right, wrong, none := judge(r, sides)
			if b := slowBand(r); right < 950 || wrong > c.far || b.Network == 0 {
				t.Errorf("%+v: %d right, %d wrong, %d to none; %s", c, right, wrong, none, r.Aligned)
			}
			must.OK(t, r.AddResponder(l, trips, 1_000_000_000)) // and nothing of that is left
		}
		l.End -= minute / 2
		if err := r.AddResponder(l, trips, -1); !errors.Is(err, errNotShown) {
			t.Errorf("%+v: it did not record all the while: %v", c, err)
		}
		l.End, l.Missed = l.End+minute/2, 1
		if err := r.AddResponder(l, trips, -1); !errors.Is(err, errNotShown) {
			t.Errorf("%+v: gaps are missing: %v", c, err)
		}
	}
	for seed := range uint64(10) { // gaps that other round trips met
		r, l, _ := plan{seed: seed, network: 900}.build()
		_, busy, _ := plan{seed: seed + 100, far: 800, short: 20_000}.build()
		l.Intervals, l.Same = busy.Intervals, true
		if err := r.AddResponder(l, trips, -1); !errors.Is(err, errNotShown) {
			t.Errorf("%v; %s", err, r.Aligned)
		}
	}
}

func ofResponder(r *Result) bool {
	return slices.ContainsFunc(r.Causes, func(c Count) bool { return c.Side == Responder.String() })
}

// What cannot be added is refused with the reason.
func TestAddResponderRefuses(t *testing.T) {
	r, l, _ := planted(0, 0, 100, 0, 0)
	l.Start, l.End = l.Start+100e9, l.End+100e9
	if err := r.AddResponder(l, 1, -1); !errors.Is(err, ErrNoOverlap) {
		t.Error(err)
	}
	l.Start, l.End, l.Intervals = l.Start-100e9, l.End-100e9, nil
	if err := r.AddResponder(l, 1, -1); !errors.Is(err, ErrNoGaps) {
		t.Error(err)
	}
	if err := (*Result)(nil).AddResponder(l, 1, -1); !errors.Is(err, ErrNoRows) {
		t.Error(err)
	}
}

// Over many measurements, whatever the clocks, the mixture of causes, and however busy the responder's host, at least
// 95 % of the round trips are attributed to the planted side and at most 1 % to another.
func TestAlignedSides(t *testing.T) {
	right, wrong, none, refused, measurements := 0, 0, 0, 0, needs.Cases(uint64(200), 4)
	for seed := range measurements {
		dice := rand.New(rand.NewPCG(seed, 7))
		c := plan{seed: seed, offset: dice.Int64N(1_800_000_000) - 900_000_000, drift: (dice.Float64() - 0.5) * 180e-6}
		c.far, c.here, c.network = 60+dice.IntN(300), dice.IntN(100), dice.IntN(150)
		if seed%2 == 1 {
			c.short = dice.IntN(20_000)
		}
		r, l, sides := c.build()
		before := rowTotals(r)
		if err := r.AddResponder(l, trips, -1); err != nil {
			refused++
			t.Logf("%+v: %v", c, err)
		}
		addUp(t, r)
		check.Equal(t, rowTotals(r), before, "round trips add up to %d")
		a, b, n := judge(r, sides)
		right, wrong, none = right+a, wrong+b, none+n
		if 20*b > a {
			t.Errorf("%+v: %d right, %d wrong, %d to none; %s", c, a, b, n, r.Aligned)
		}
	}
	all := right + wrong + none
	t.Logf("%d right, %d wrong, %d to none, %d of %d measurements refused", right, wrong, none, refused, measurements)
	if 100*right < 95*all || 100*wrong > all {
		t.Errorf("%d right, %d wrong and %d to none of %d", right, wrong, none, all)
	}
}

// A gap explains a round trip only if the probe can have come soon after it was sent, and if the reply came back soon
// after the gap's end. Otherwise the link delayed it for certain, and whether the gap did as well is not known.
func TestGapWithinADelay(t *testing.T) {
	for _, clockError := range []int64{-1, 1000} {
		r, l, sides := plan{seed: 5, far: 200, during: 60}.build()
		must.OK(t, r.AddResponder(l, trips, clockError))
		addUp(t, r)
		right, wrong, none := judge(r, sides)
		if right < 195 || wrong > 2 {
			t.Errorf("clock error %d: %d right, %d wrong, %d to none", clockError, right, wrong, none)
		}
		for i := range r.Rows {
			if row := &r.Rows[i]; sides[row.RTT] == Network && row.Parts.Of(Network) < row.RTT/6 {
				t.Errorf("%d ns of %d are the network's", row.Parts.Of(Network), row.RTT)
			}
		}
	}
}

// Probes that came while the responder's loop did not run are answered one after the other when it does.
func TestBacklog(t *testing.T) {
	for _, c := range []plan{{backlog: 6}, {backlog: 6, network: 100}, {backlog: 20, short: 1000}} {
		c.seed, c.far, c.probes = 6, 100, 5
		r, l, sides := c.build()
		must.OK(t, r.AddResponder(l, trips, 1000))
		addUp(t, r)
		if right, wrong, none := judge(r, sides); right < 95*len(r.Rows)/100 || wrong > 2 {
			t.Errorf("%+v: %d right, %d wrong, %d to none", c, right, wrong, none)
		}
	}
}

// The clocks' true difference is within the stated bound, also where no round trip shows it. The bound is that of the
// network's path: with a card's timestamps it does not matter how late this host sees a reply.
func TestAlignmentIsWithinItsBound(t *testing.T) {
	seeds := needs.Cases(uint64(20), 6)
	for seed := range seeds {
		c := plan{seed: seed, offset: 123_456_789 * int64(seed%8), drift: float64(seed)*9e-6 - 90e-6, far: 100,
			network: 100, until: minute / int64(1+seed%3*4), card: int64(seed%2) * 200_000}
		r, l, _ := c.build()
		var all []slow
		for i := range r.Rows {
			all = append(all, r.slow(&r.Rows[i]))
		}
		gaps := slices.Clone(l.Intervals)
		gaps = slices.DeleteFunc(gaps, func(g Interval) bool { return g.Text != "" })
		slices.SortFunc(gaps, func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
		a := must.Get(align(all, gaps, mostOffset, r.path()))(t)[0]
		if r.path() > 11_000 {
			t.Errorf("%+v: a path of %d ns", c, r.path())
		}
		for at := int64(0); at <= minute; at += minute / 20 {
			off := a.far(epoch+at) - (epoch + at + c.offset + int64(c.drift*float64(at)))
			if max(off, -off) > a.within(epoch+at) {
				t.Errorf("%+v: %d ns off after %d s, the bound is %d", c, off, at/1e9, a.within(epoch+at))
			}
		}
	}
}

// Strictly periodic gaps fit at many differences of the clocks. Few are followed, and what is the same by all of them
// is attributed; many are refused, with their number. Knowing the clocks better excludes all but one.
func TestPeriodicGaps(t *testing.T) {
	needs.Long(t)
	for _, c := range []plan{
		{period: 4e6, length: 100_000, far: 300, network: 100},
		{period: 250e6, length: 2_000_000, far: 200, here: 50, network: 100},
		{period: 250e6, length: 2_000_000, far: 200, drift: 30e-6, short: 5000},
	} {
		c.seed, c.offset = 3, 1_300_000
		r, l, sides := c.build()
		err := r.AddResponder(l, trips, -1)
		n, least := 0, int(mostOffset/c.period)
		if least > mostFits {
			_, scan := fmt.Sscanf(fmt.Sprint(err), errAmbiguous.Error()+": %d differences", &n)
			if !errors.Is(err, errAmbiguous) || scan != nil || n < least {
				t.Fatalf("%+v: %d differences: %v; %s", c, n, err, r.Aligned)
			}
			apart := 0.0
			_, text, _ := strings.Cut(err.Error(), "the nearest ")
			if _, err := fmt.Sscanf(text, "%f ms", &apart); err != nil ||
				100*math.Abs(apart*1e6-float64(c.period)) > float64(c.period) {
				t.Errorf("%+v: the differences are %q", c, text)
			}
			if right, wrong, _ := judge(r, sides); wrong > 0 || right > c.here {
				t.Errorf("%+v: attributed by clocks that are not aligned: %d right, %d wrong", c, right, wrong)
			}
		} else {
			must.OK(t, err)
			_, text, _ := strings.Cut(r.Aligned, "; ")
			if _, err := fmt.Sscanf(text, "%d differences fit", &n); err != nil || n < least {
				t.Errorf("%+v: %d differences: %q", c, n, r.Aligned)
			}
			addUp(t, r)
			causesAgree(t, r)
			right, wrong, none := judge(r, sides)
			if all := right + wrong + none; 100*right < 95*all || 100*wrong > all {
				t.Errorf("%+v: %d right, %d wrong, %d to none; %s", c, right, wrong, none, r.Aligned)
			}
		}
		must.OK(t, r.AddResponder(l, trips, c.period/2-200_000))
		check.Contains(t, r.Aligned, "aligned by")
		check.Equal(t, strings.Contains(r.Aligned, ";"), false, "more than one difference fits: %v")
		addUp(t, r)
		right, wrong, none := judge(r, sides)
		if all := right + wrong + none; 100*right < 95*all || 100*wrong > all {
			t.Errorf("%+v: %d right, %d wrong, %d to none; %s", c, right, wrong, none, r.Aligned)
		}
	}
}

// What several relations of the clocks disagree on is not attributed: it stays elsewhere, or is unknown if this host
// may have caused it. A cause must be the same by all.
func TestAgree(t *testing.T) {
	const hog, tick = "descheduled", "timer tick"
	by := func(p Parts, causes ...string) *Result {
		r := &Result{Rows: []Row{{Parts: p, Times: make(Times, len(points)), Errors: make(Times, len(points))}}}
		for i, c := range causes {
			r.Rows[0].Causes = append(r.Rows[0].Causes, i)
			r.Causes = append(r.Causes, Count{Side: Responder.String(), Text: c, Probes: 1})
		}
		return r
	}
	for name, c := range map[string]struct {
		a, b   *Result
		want   Parts
		causes int
	}{
		"the same": {by(Parts{FarWait: 90, HereSeen: 10}, hog), by(Parts{FarWait: 90, HereSeen: 10}, hog),
			Parts{FarWait: 90, HereSeen: 10}, 1},
		"another cause": {by(Parts{FarWait: 100}, hog, tick), by(Parts{FarWait: 100}, tick), Parts{FarWait: 100}, 1},
		"responder or network": {by(Parts{FarWait: 90, Network: 10}, hog), by(Parts{Network: 100}),
			Parts{Network: 10, Elsewhere: 90}, 0},
		"responder or this host": {by(Parts{FarWait: 70, HereSeen: 30}), by(Parts{FarWait: 20, HereSeen: 80}),
			Parts{FarWait: 20, HereSeen: 30, Unknown: 50}, 0},
		"network, or both hosts may have": {by(Parts{Network: 80, Path: 20}), by(Parts{Unknown: 60, Network: 20, Path: 20}),
			Parts{Network: 20, Path: 20, Unknown: 60}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, each := range [][]*Result{{c.a, c.b}, {c.b, c.a}} {
				r := by(Parts{})
				r.agree(each)
				check.Equal(t, r.Rows[0].Parts, c.want, "%+v")
				check.Equal(t, len(r.Rows[0].Causes), c.causes, "%d causes")
				causesAgree(t, r)
			}
		})
	}
	for answered, want := range map[int64][2]int64{NotKnown: {NotKnown, NotKnown}, 0: {7, 3}} {
		one := by(Parts{FarWait: 10})
		one.Rows[0].Times[4], one.Rows[0].Times[5], one.Rows[0].Errors[4] = 7, answered, 3
		r := by(Parts{})
		r.agree([]*Result{one, one.clone()})
		check.Equal(t, [2]int64{r.Rows[0].Times[4], r.Rows[0].Errors[4]}, want, "seen by the responder's thread: %d")
	}
}

// The report of another host, or of another time of the same, explains nothing and is refused.
func TestWrongReportIsRefused(t *testing.T) {
	measurements := needs.Cases(uint64(40), 4)
	for seed := range measurements {
		c := plan{seed: seed, offset: int64(seed) * 1e6, far: 50 + int(seed)*3, network: 100,
			short: int(seed%10) * 2000}
		r, _, _ := c.build()
		before := rowTotals(r)
		other := c
		other.seed += 1000
		_, l, _ := other.build()
		if seed%2 == 1 { // the same host at another time, as a clock says that is far off
			_, l, _ = c.build()
			for i := range l.Intervals {
				l.Intervals[i].Start, l.Intervals[i].End = l.Intervals[i].Start+7e9, l.Intervals[i].End+7e9
			}
		}
		if err := r.AddResponder(l, trips, -1); err == nil {
			t.Errorf("%+v: %s", c, r.Aligned)
		}
		check.Equal(t, rowTotals(r), before, "round trips add up to %d")
	}
	c := plan{period: 250e6, length: 2_000_000, far: 200}
	r, _, _ := c.build()
	c.period, c.seed = 200e6, 9
	_, l, _ := c.build()
	if err := r.AddResponder(l, trips, -1); err == nil {
		t.Errorf("aligned by gaps of another period: %s", r.Aligned)
	}
}

// A clock that was set during the measurement is found out.
func TestClockThatWasSet(t *testing.T) {
	seeds, halves := needs.Cases(uint64(6), 2), needs.Cases(uint64(20), 5)
	for _, step := range []int64{700_000, 40_000_000, 900_000_000} {
		for seed := range seeds {
			c := plan{seed: seed, far: 300, network: 100, step: step, after: minute * int64(2+seed) / 10}
			r, l, _ := c.build()
			if err := r.AddResponder(l, trips, -1); !errors.Is(err, errChanged) {
				t.Errorf("%+v: %v; %s", c, err, r.Aligned)
			}
		}
	}
	for seed := range halves { // so few that only halves show it
		r, l, _ := plan{seed: seed, far: 20, network: 10, step: 40e6, after: minute / 2}.build()
		check.Fails(t, fmt.Sprint("seed ", seed), r.AddResponder(l, trips, -1), errChanged)
	}
}

// Gaps of a busy responder that in a part of the time fit at another difference, and better, are no clock that was set:
// the true difference fits there, too.
func TestGapsThatFitInAPart(t *testing.T) {
	r, l, sides := plan{seed: 2, far: 80, network: 120}.build()
	n := 0
	for i := range r.Rows {
		row := &r.Rows[i]
		if seen := row.At*1000 + row.RTT; sides[row.RTT] == Network && seen < epoch+minute/4 && n < 28 {
			n++
			end := seen + 300e6 - 5000
			l.Intervals = append(l.Intervals, Interval{Start: end - row.RTT, End: end, Core: 1})
		}
	}
	must.OK(t, r.AddResponder(l, trips, -1))
	right, wrong, none := judge(r, sides)
	if all := right + wrong + none; n < 20 || 100*right < 95*all {
		t.Errorf("%d gaps: %d right, %d wrong, %d to none; %s", n, right, wrong, none, r.Aligned)
	}
}

// Round trips that waited for the same gap are one observation: three gaps that delayed hundreds of them align no
// clocks.
func TestFewGapsOfManyRoundTrips(t *testing.T) {
	r, l, _ := plan{far: 3, probes: 300}.build()
	if err := r.AddResponder(l, trips, -1); !errors.Is(err, errNotShown) {
		t.Errorf("%v; %s", err, r.Aligned)
	}
	r, l, sides := plan{far: 40, probes: 20}.build()
	must.OK(t, r.AddResponder(l, trips, -1))
	if right, wrong, none := judge(r, sides); 100*right < 95*len(r.Rows) {
		t.Errorf("%d right, %d wrong, %d to none; %s", right, wrong, none, r.Aligned)
	}
}

// A report that may be another responder's is refused if only -clock-error relates its clock, and accepted if the round
// trips do.
func TestDoubtfulReport(t *testing.T) {
	const doubt = "the probes went to another address"
	r, l, _ := planted(0, 0, 0, 10, 900) // nothing waited for the responder
	must.OK(t, r.AddResponder(l, trips, 1000))
	r, l, _ = planted(0, 0, 0, 10, 900)
	l.Doubt = doubt
	if err := r.AddResponder(l, trips, 1000); !errors.Is(err, ErrDoubtful) || !strings.Contains(err.Error(), doubt) {
		t.Errorf("%v", err)
	}
	if r.Aligned != "" {
		t.Errorf("refused, and attributed: %s", r.Aligned)
	}
	r, l, _ = planted(0, 0, 600, 200, 200)
	l.Doubt = doubt
	must.OK(t, r.AddResponder(l, trips, 1000))
}

// With a stated error of the clocks, a report of a time just before or after does not overlap.
func TestStatedErrorBoundsTheTime(t *testing.T) {
	for _, shift := range []int64{-minute - 2e9, minute + 2e9} { // the responder's time has a second more at both ends
		r, l, _ := planted(0, 0, 0, 10, 900)
		l.Start, l.End = l.Start+shift, l.End+shift
		if err := r.AddResponder(l, trips, 1000); !errors.Is(err, ErrNoOverlap) {
			t.Errorf("%d s later: %v", shift/1e9, err)
		}
	}
	r, _, _ := planted(0, 0, 0, 0, 1)
	s := r.slow(&r.Rows[0])
	for slack, clockError := range map[int64]int64{mostOffset: -1, 1000: 1000, 0: 0} {
		const end = math.MaxInt64 - mostOffset
		for span, want := range map[[2]int64]error{{s.seen + slack, end}: ErrNoGaps,
			{s.seen + slack + 1, end}: ErrNoOverlap, {0, s.sent - slack}: ErrNoGaps,
			{0, s.sent - slack - 1}: ErrNoOverlap} {
			err := r.AddResponder(&Loop{Start: span[0], End: span[1]}, trips, clockError)
			check.Fails(t, fmt.Sprintf("from %d to %d with a slack of %d", span[0], span[1], slack), err, want)
		}
	}
}
