package compare

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// errLimit is returned for a fail-if expression that cannot be parsed.
var errLimit = errors.New("bad limit")

// errUndecided is returned for a limit on a statistic whose verdict is Unknown.
var errUndecided = errors.New("cannot be told")

// Limit is one fail-if expression, "p99>+5%+200ns": the difference from the base beyond which a comparison fails. If it
// has both parts, both must be exceeded: a relative limit alone would fail over a nanosecond on a fast link, an
// absolute limit alone over normal variation on a slow link.
type Limit struct {
	Stat     Stat
	Relative float64 // per cent; 0 if only Absolute applies
	Absolute float64 // ns; 0 if only Relative applies
}

func (l Limit) String() string {
	s := l.Stat.String() + ">"
	if l.Relative > 0 {
		s += fmt.Sprintf("+%v%%", l.Relative)
	}
	if l.Absolute > 0 {
		s += fmt.Sprintf("+%vns", l.Absolute)
	}
	return s
}

var limitUnits = []struct {
	suffix string
	ns     float64
}{{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"μs", 1e3}, {"ms", 1e6}, {"s", 1e9}}

// ParseLimits parses expressions separated by commas: a statistic, '>', and one or two amounts with plus signs, one in
// per cent, one in ns, us, ms or s. Spaces are ignored.
func ParseLimits(s string) ([]Limit, error) {
	var out []Limit
	for part := range strings.SplitSeq(s, ",") {
		l, err := parseLimit(strings.Join(strings.Fields(part), ""))
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w; expected something like p99>+5%%+200ns", errLimit,
				strings.TrimSpace(part), err)
		}
		out = append(out, l)
	}
	return out, nil
}

// parseLimit parses "p99>+5%+200ns": a statistic, and the amounts by which it may rise, as a share, in time, or both.
func parseLimit(s string) (l Limit, err error) {
	name, amounts, ok := strings.Cut(s, ">")
	if !ok {
		return l, errors.New("there is no '>'")
	}
	if l.Stat, err = ParseStat(name); err != nil {
		return l, err
	}
	if !strings.HasPrefix(amounts, "+") {
		return l, errors.New("after '>' comes an amount with its sign, '+'")
	}
	for a := range strings.SplitSeq(amounts[1:], "+") {
		to, unit, number := &l.Absolute, 0.0, a
		if n, ok := strings.CutSuffix(a, "%"); ok {
			to, unit, number = &l.Relative, 1, n
		} else {
			for _, u := range limitUnits {
				if n, ok := strings.CutSuffix(a, u.suffix); ok {
					unit, number = u.ns, n
					break
				}
			}
		}
		if unit == 0 {
			return l, fmt.Errorf("%q has no unit: %%, ns, us, ms or s", a)
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.Trim(number, "0123456789.") != "" || !(v > 0) || math.IsInf(v*unit, 0) {
			return l, fmt.Errorf("%q is no amount above zero", a)
		}
		if *to != 0 {
			return l, fmt.Errorf("%q: there is such an amount already", a)
		}
		*to = v * unit
	}
	return l, nil
}

// Exceeded returns one line for each limit given to Against that a report exceeds: the verdict is Slower, and the shift
// is beyond the limit. It returns none if all limits hold. The error is ErrNotComparable, or errUndecided if a limit's
// statistic could not be tested or if its shift exceeds the limit but may be drift.
func (c *Comparison) Exceeded() ([]string, error) {
	if len(c.Obstacles) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrNotComparable, strings.Join(c.Obstacles, "; "))
	}
	var out []string
	var undecided []error
	for _, p := range c.Pairs {
		for _, l := range c.limits {
			row := p.Rows[slices.IndexFunc(p.Rows, func(r Row) bool { return r.Stat == l.Stat })]
			beyond := row.Shift > l.Absolute && row.Shift > row.Base*l.Relative/100
			switch {
			case !row.Tested() || row.Verdict == Unknown && beyond:
				undecided = append(undecided, fmt.Errorf("%v: %w: %s", l, errUndecided, row.Why))
			case row.Verdict == Slower && beyond:
				out = append(out, fmt.Sprintf("%v: %s went from %s to %s in %s, %s (%s; p=%.3g, %s)", l, l.Stat,
					latency.FormatNS(row.Base),
					latency.FormatNS(row.Base+row.Shift), p.B.Name(), latency.FormatSigned(row.Shift),
					latency.FormatChange(row.Percent()/100), row.P, row.How))
			}
		}
	}
	return out, errors.Join(undecided...)
}
