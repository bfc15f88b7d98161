package attribution

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// ordinary is a round trip of 10 µs: 3 µs to send, answered in 0.4 µs, both loops at work.
func ordinary() Probe {
	return Probe{Intended: 1_000_000, Sent: 1_000_000, Left: 1_003_000, Looked: 1_009_900, Seen: 1_010_000,
		Residence: 400, FarWait: 150, ClockError: -1}
}

func sampleOf(n int) (all []Probe) {
	for range n {
		p := ordinary()
		p.Seen += rand.Int64N(100)
		all = append(all, p)
	}
	return all
}

// A percentile has the mean of the round trips around it only if there are enough: of the slowest if they go so far,
// otherwise of the sample.
func TestBands(t *testing.T) {
	u := Typical(sampleOf(100))
	for _, c := range []struct {
		slowest, sample int
		total           int64
		want            string // the percentiles, and the number of round trips of each
	}{
		{0, 39, 1000, "[]"},
		{0, 40, 1000, "[p50 4]"},
		{0, 200, 1000, "[p50 20 p90 4]"},
		{200, 40, 1000, "[p50 4 p90 20 p99 4]"},
		{121, 40, 1000, "[p50 4]"},
		{122, 40, 1000, "[p50 4 p90 20 p99 4]"},
		{20, 40, 10_000, "[p50 4]"},
		{200, 40, 10_000, "[p50 4]"},
		{700, 40, 1000, "[p50 100 p90 20 p99 4]"},
	} {
		all := []string{}
		for _, b := range bands(sorted(sampleOf(c.slowest)), sampleOf(c.sample), c.total, &u) {
			all = append(all, fmt.Sprint(b.Name, " ", b.Probes))
			if sum := b.Parts.Path; sum < 9000 || sum > 11_000 {
				t.Errorf("%+v: %+v", c, b)
			}
		}
		check.Equal(t, fmt.Sprint(all), c.want, fmt.Sprint(c, ": %s"))
	}
}

// A timestamp that may be wrong by more than a quarter of the round trip does not count, another one does.
func TestCoarseTimestamps(t *testing.T) {
	const more = 200_000
	for off, want := range map[int64]Side{1000: Here, more / 4: Here, more / 3: Elsewhere} {
		p := ordinary()
		p.FarWait, p.Residence, p.LeftNIC, p.Reached = -1, -1, 3000, 9000
		p.LeftNICError, p.ReachedError = off, off
		p.Looked, p.Seen = p.Looked+more, p.Seen+more
		r := Explain([]Probe{p}, sampleOf(100), About{Total: 1000}, nil)
		if row := r.Rows[0]; row.Side != want.String() || (row.Times[2] < 0) != (want == Elsewhere) ||
			(row.Times[7] < 0) != (want == Elsewhere) {
			t.Errorf("wrong by %d ns at most: %s, %+v", off, row.Side, row)
		}
	}
}

// One cause at a time goes to its side, and two of the same length on both hosts are unknown.
func TestVerdict(t *testing.T) {
	const more = 200_000
	u := Typical(sampleOf(1000))
	for what, c := range map[string]struct {
		change func(*Probe)
		want   Side
	}{
		"sent late":                   {func(p *Probe) { p.Intended -= more }, Here},
		"held up while sending":       {func(p *Probe) { p.Left += more; p.Looked += more; p.Seen += more }, Here},
		"own loop stopped":            {func(p *Probe) { p.Seen += more }, Here},
		"held up after it was sent":   {func(p *Probe) { p.LeftNIC = 3000 + more; p.Looked += more; p.Seen += more }, Here},
		"held up in our kernel":       {func(p *Probe) { p.Reached = 9000; p.Looked += more; p.Seen += more }, Here},
		"responder's loop stopped":    {func(p *Probe) { p.FarWait += more + 1000; p.Looked += more; p.Seen += more }, Responder},
		"responder stopped answering": {func(p *Probe) { p.Residence += more; p.Looked += more; p.Seen += more }, Responder},
		"the link delayed it":         {func(p *Probe) { p.Looked += more; p.Seen += more }, Network},
		"responder's loop unknown":    {func(p *Probe) { p.FarWait = -1; p.Looked += more; p.Seen += more }, Elsewhere},
		"another protocol, own loop":  {func(p *Probe) { p.FarWait, p.Residence = -1, -1; p.Seen += more }, Here},
		"both loops stopped":          {func(p *Probe) { p.FarWait += more; p.Seen += more }, Unknown},
		"both, the clocks tell": {func(p *Probe) {
			p.FarWait += more
			p.Seen += more
			p.There, p.Back, p.ClockError = 4000+more, 4000, 1000
		}, Responder},
	} {
		p := ordinary()
		c.change(&p)
		parts := Divide(&p, &u)
		if got := parts.Verdict(&u); got != c.want {
			t.Errorf("%s: %v, want %v: %+v", what, got, c.want, parts)
		}
	}
}

// With timestamps of the NIC, what was in this host beyond the usual is divided: on the way to where the loop sees it,
// and waiting for the loop. What the link delayed is not this host's, however long ago the loop looked last.
func TestDivideByTimestamps(t *testing.T) {
	const more, usual = 200_000, 1500
	stamped := func(p Probe) Probe {
		p.LeftNIC, p.Reached = 4000, p.Seen-p.Sent-usual
		return p
	}
	sample := sampleOf(1000)
	for i := range sample {
		sample[i] = stamped(sample[i])
	}
	u := Typical(sample)
	check.Equal(t, u.NIC, usual, "usually %d ns from the NIC to the loop")
	for what, c := range map[string]struct {
		change func(*Probe)
		want   Parts
	}{
		"loop stopped":                      {func(p *Probe) { p.Seen += more }, Parts{HereSeen: more}},
		"interrupt delayed":                 {func(p *Probe) { p.Looked += more; p.Seen += more }, Parts{HereNIC: more}},
		"both":                              {func(p *Probe) { p.Looked += more; p.Seen += 2 * more }, Parts{HereNIC: more - 100, HereSeen: more + 100}},
		"link":                              {func(p *Probe) { p.Looked += more; p.Seen += more; p.Reached += more }, Parts{Network: more}},
		"link, and the loop had not looked": {func(p *Probe) { p.Seen += more; p.Reached += more }, Parts{Network: more}},
		"left late": {func(p *Probe) { p.Looked += more; p.LeftNIC += more; p.Seen += more; p.Reached += more },
			Parts{HereSend: more}},
	} {
		p := stamped(ordinary())
		c.change(&p)
		got := Divide(&p, &u)
		check.Equal(t, got.Sum(), p.RTT(), what+": the parts add up to %d")
		got.FarAnswer, got.Path = 0, 0
		for i, f := range got.fields() {
			want := *c.want.fields()[i]
			if d := *f - want; max(d, -d) > 300 { // the sample varies by 100 ns, and the responder's loop by 150
				t.Errorf("%s: %+v, want %+v", what, got, c.want)
				break
			}
		}
	}
}

// Whatever was observed, the parts add up to the round trip to the ns, and none is negative.
func TestPartsAddUp(t *testing.T) {
	u := Typical(sampleOf(1000))
	for range 200_000 {
		any := func() int64 { return rand.Int64N(1 << rand.IntN(40)) }
		p := Probe{Intended: any()}
		p.Sent = p.Intended + any()
		p.Left = p.Sent + any()
		p.Seen = p.Sent + any()
		p.Looked = p.Seen - any()
		p.Residence = min(any(), p.Seen-p.Sent)
		p.FarWait, p.There, p.Back, p.ClockError = any()-1, any()-1000, any()-1000, any()-1
		if rand.IntN(2) == 0 {
			p.LeftNIC, p.Reached = any(), any()
		}
		parts := Divide(&p, &u)
		if parts.Sum() != p.RTT() {
			t.Fatalf("%+v: %+v add up to %d", p, parts, parts.Sum())
		}
		for _, f := range parts.fields() {
			if *f < 0 {
				t.Fatalf("%+v: a part is negative: %+v", p, parts)
			}
		}
	}
}

// What is printed names the sides, and the causes that overlap a wait, with the number of probes.
func TestLines(t *testing.T) {
	sample := sampleOf(4096)
	var slow []Probe
	for i := range 100 {
		p := ordinary()
		p.FarSeen = 5_000_000
		switch {
		case i < 70:
			p.FarWait, p.Looked, p.Seen = 200_000, p.Looked+200_000, p.Seen+200_000
		case i < 90:
			p.Seen += 200_000
		default:
			p.Looked, p.Seen = p.Looked+200_000, p.Seen+200_000
		}
		slow = append(slow, p)
	}
	r := Explain(slow, sample, About{Direction: "clocks are not synchronised", Total: 100_000, Epoch: 7_000_000},
		[]Cause{
			{4_900_000, 4_950_000, Responder, "polling thread descheduled on cpu 3", "kworker/3:1", false},
			{4_950_000, 4_980_000, Responder, "polling thread descheduled on cpu 3", "cron", false}, {1, 2, Responder, "long before", "", false},
			{1_100_000, 1_200_000, Here, "interrupts of eth1 on cpu 0", "", false}, {1_100_000, 1_200_000, Here, "softirq RCU on cpu 0", "", true},
			{1_100_000, 1_101_000, Here, "too short", "", false}})
	text := strings.Join(r.Lines(), "\n")
	for _, want := range []string{
		"The 100 slowest (210.0 µs and more): responder's host 70 %, this host 20 %, network 10 %",
		"polling thread descheduled on cpu 3: cron 70, kworker/3:1 70\n",
		"interrupts of eth1 on cpu 0: 20; softirq RCU on cpu 0 (weak hint, by counters): 20\n",
		"direction unknown: clocks are not synchronised"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	for i, c := range r.Causes {
		rows := 0
		for k := range r.Rows {
			if slices.Contains(r.Rows[k].Causes, i) {
				rows++
			}
		}
		if rows != c.Probes {
			t.Errorf("%d rows have the cause %+v", rows, c)
		}
	}
	if strings.Contains(text, "long before") || strings.Contains(text, "too short") {
		t.Errorf("a cause that made no probe slow is named: %q", text)
	}
	if i := slices.IndexFunc(r.Bands, func(b Band) bool { return b.Name == "p99" }); i < 0 {
		t.Errorf("no p99: %+v", r.Bands)
	}
	if at := r.Rows[0].At; at != 8_000 {
		t.Errorf("sent at %d, 1 ms by the counter and 7 ms later since 1970", at)
	}
	if Explain(nil, nil, About{}, nil).Lines() != nil {
		t.Error("something is said of nothing")
	}
}

// Where causes are known from is a field; of reports that were written before it existed it is read from the text.
func TestSource(t *testing.T) {
	for _, c := range []struct {
		json string
		want Source
	}{
		{`{"causes_by": "tracepoints", "causes_known_by": "another wording"}`, Tracepoints},
		{`{"causes_by": "counters", "causes_known_by": "the kernel's tracepoints are not available"}`, Counters},
		{`{"causes_known_by": "the kernel's tracepoints (BPF), intervals from 5µs"}`, Tracepoints},
		{`{"causes_known_by": "counters only: no CAP_BPF and CAP_PERFMON"}`, Counters},
		{`{"causes_known_by": "not watched: this process may use only one CPU"}`, NotWatched},
		{`{}`, NotWatched},
	} {
		var r Result
		if err := json.Unmarshal([]byte(c.json), &r); err != nil || r.Source() != c.want {
			t.Errorf("%s: %q, %v, want %q", c.json, r.Source(), err, c.want)
		}
	}
}
