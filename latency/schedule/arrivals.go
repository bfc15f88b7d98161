package schedule

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Arrivals describes how an open loop spreads its probes over time. The zero value sends them evenly. In every case the
// schedule does not depend on replies: a probe that is sent late is still timed from the moment at which it should have
// been sent.
type Arrivals struct {
	text  string
	burst int       // 0 for none
	gaps  []float64 // replay: between arrivals, as multiples of the mean
	mean  float64   // replay: ns between arrivals
	kind  kind
}

type kind uint8

const (
	periodic kind = iota
	poisson
	bursts
	replay
)

// MaxBurst is the greatest number of probes that are due at the same time.
const MaxBurst = 10_000

// ParseArrivals reads "periodic", "poisson", or "burst:32".
func ParseArrivals(text string) (Arrivals, error) {
	switch name, number, _ := strings.Cut(text, ":"); {
	case text == "periodic":
		return Arrivals{}, nil
	case text == "poisson":
		return Arrivals{text: text, kind: poisson}, nil
	case name == "burst":
		n, err := strconv.Atoi(number)
		if err != nil || n < 2 || n > MaxBurst {
			return Arrivals{}, fmt.Errorf("arrivals %q: want burst:N with 2 to %d probes", text, MaxBurst)
		}
		return Arrivals{text: text, kind: bursts, burst: n}, nil
	}
	return Arrivals{}, fmt.Errorf("arrivals %q: want periodic, poisson, burst:N or replay:FILE", text)
}

// Replay returns arrivals with the same distances as these times in ns, repeated endlessly. The times need not be
// sorted. name is what reports call them.
func Replay(name string, times []int64) (Arrivals, error) {
	times = slices.Sorted(slices.Values(times))
	if len(times) < 2 || times[0] == times[len(times)-1] {
		return Arrivals{}, errors.New("want at least two packets at different times")
	}
	a := Arrivals{text: "replay:" + name, kind: replay}
	span := times[len(times)-1] - times[0]
	a.mean = float64(span) / float64(len(times)-1)
	for i, t := range times[1:] {
		a.gaps = append(a.gaps, float64(t-times[i])/a.mean)
	}
	return a, nil
}

// Even reports whether probes are sent evenly.
func (a *Arrivals) Even() bool { return a.kind == periodic }

// Text returns the arrivals in the format that ParseArrivals reads; empty if they are even.
func (a *Arrivals) Text() string { return a.text }

// Rate is the mean rate of a replay per second; it is 0 for other arrivals, which have no inherent rate.
func (a *Arrivals) Rate() float64 {
	if a.kind != replay {
		return 0
	}
	return 1e9 / a.mean
}

// Most returns how many probes may be due within a number of mean periods: the greatest number that the schedule
// contains or, for a Poisson process, a bound that is practically never exceeded.
func (a *Arrivals) Most(periods float64) int {
	switch a.kind {
	case bursts:
		return int(periods) + 2*a.burst
	case poisson:
		return 2*int(periods) + 100
	case replay:
		most, from, within := 0, 0, 0.0
		for to := range a.gaps {
			for within += a.gaps[to]; within > periods; from++ {
				within -= a.gaps[from]
			}
			most = max(most, to-from+2)
		}
		return most * (1 + int(periods)/len(a.gaps))
	}
	return int(periods) + 1
}

// Process returns the sequence of arrivals drawn from a seed.
func (a *Arrivals) Process(seed uint64) *Process {
	return &Process{a: *a, random: rand.New(rand.NewPCG(seed, 0xa3))}
}

// Process is a sequence of arrivals. It allocates nothing.
type Process struct {
	a      Arrivals
	random *rand.Rand
	n      int
	at     float64
}

// Next returns when the next probe is due, in mean periods since the start. The first is due at 0.
func (p *Process) Next() float64 {
	at := p.at
	switch p.n++; p.a.kind {
	case periodic:
		p.at = float64(p.n)
	case poisson:
		p.at += p.random.ExpFloat64()
	case bursts:
		if p.n%p.a.burst == 0 {
			p.at += float64(p.a.burst)
		}
	case replay:
		p.at += p.a.gaps[(p.n-1)%len(p.a.gaps)]
	}
	return at
}
