package watch

import (
	"context"
	"log/slog"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

// judgement is the verdict on a statistic of an hour, compared with the same hour of earlier days.
type judgement struct {
	verdict compare.Verdict
	shift   float64 // ns
	why     string  // why it is undecided
	days    int
}

// FewestDays is how many earlier days a verdict needs. Fewer do not show how much a target changes from day to day: in
// TestChangeCalibration, if days differ by 30 %, 44 % of unchanged hours had a verdict with one earlier day, 3 % with
// two, and none with three.
const FewestDays = 3

// compareHour compares the hour so far with the same hour of earlier days. It is repeated with each interval from the
// eighth on, so each of these tables gets its part of the 5 % of unchanged hours that may have a verdict. An hour at
// one probe per second has enough samples only for p50 and p90.
func compareHour(before, now *report.Report, interval time.Duration) compare.Pair {
	looks := int(time.Hour/interval) - compare.MinRuns + 1
	return compare.Among(looks, compare.Stats(latency.BriefTable), before, now)
}

// judge compares the hour so far with the same hour of earlier days, for targets with a new interval. It uses the test
// of rebound-bench compare, with each interval as a run: the two series were measured one after the other, so their
// levels must differ by more than 10 per cent and by more than the drift that the intervals of these days have shown.
func (k *archive) judge(states []*state, parts []part) {
	if len(parts) == 0 || k.days == 0 {
		return
	}
	hour := parts[0].from.UTC().Truncate(time.Hour)
	if got := parts[0].to.Sub(hour) / k.interval; got < compare.MinRuns { // fewer cannot give a verdict
		return
	}
	now, err := k.dir.read(hour)
	if err != nil || now == nil {
		k.log.Warn("no verdict on change: the hour's log cannot be read", "error", err)
		return
	}
	var before []*lines
	for day := 1; day <= k.days; day++ {
		l, err := k.dir.read(hour.AddDate(0, 0, -day))
		if err != nil {
			k.log.Warn("a log is left out of the verdict on change", "error", err)
		} else if l != nil {
			before = append(before, l)
		}
	}
	if len(before) < FewestDays {
		return
	}
	for _, s := range states {
		k.mu.Lock()
		t := s.Target
		k.mu.Unlock()
		a, days, err := dayReport(t.Tag(), before...)
		if err == nil && days >= FewestDays {
			var b *report.Report
			if b, _, err = dayReport(t.Tag(), now); err == nil && b != nil {
				k.storeVerdicts(s, hour, days, compareHour(a, b, k.interval))
			}
		}
		if err != nil {
			k.log.Warn("no verdict on change", "target", t.Name(), "error", err)
		}
	}
}

// falseMarks says how often a verdict is wrong.
const falseMarks = "at most 5 % of unchanged hours of a target have a verdict"

// storeVerdicts stores the verdicts, and logs the new ones.
func (k *archive) storeVerdicts(s *state, hour time.Time, days int, p compare.Pair) {
	for _, row := range p.Rows {
		name := row.Stat.String()
		j := judgement{verdict: row.Verdict, shift: row.Shift, why: row.Why, days: days}
		k.mu.Lock()
		was := s.verdicts[name]
		s.judged = hour
		s.verdicts[name] = j
		k.mu.Unlock()
		if was.verdict == j.verdict || j.verdict < compare.Faster && was.verdict < compare.Faster {
			continue
		}
		args := []any{"target", s.Name(), "stat", name, "verdict", j.verdict.String(), "hour", hour.Format(hourFormat),
			"days", days, "false_marks", falseMarks}
		if row.Tested() {
			args = append(args, "shift", latency.FormatSigned(row.Shift), "from", latency.FormatNS(row.Base), "p",
				row.P)
		}
		c := change{slog.LevelInfo, "change against this hour on previous days", args}
		if j.verdict == compare.Slower {
			c.level, c.text = slog.LevelWarn, "slower than at this hour on previous days"
		}
		k.log.Log(context.Background(), c.level, c.text, c.args...)
		k.mu.Lock()
		k.note(s.Name(), c)
		k.mu.Unlock()
	}
}

// dayReport makes one report from a target's intervals in several logs, with each interval as a run, and returns how
// many logs have any.
func dayReport(tag string, logs ...*lines) (rep *report.Report, days int, err error) {
	var intervals []latency.Interval
	for i := len(logs) - 1; i >= 0; i-- { // oldest first
		l := logs[i]
		s, err := l.series(tag, l.hour.Format(hourFormat)+".hlog")
		if err != nil {
			return nil, 0, err
		}
		if s == nil {
			continue
		}
		days++
		for _, iv := range s.Intervals {
			iv.Start += l.hour.UnixNano()
			iv.End += l.hour.UnixNano()
			intervals = append(intervals, iv)
		}
	}
	if len(intervals) == 0 {
		return nil, 0, nil
	}
	rep = &report.Report{Label: tag, Metric: report.RoundTrip, Start: time.Unix(0, intervals[0].Start),
		End: time.Unix(0, intervals[len(intervals)-1].End)}
	origin := intervals[0].Start
	main := &latency.Series{Name: latency.MainSeries}
	for _, iv := range intervals {
		iv.Start -= origin
		iv.End -= origin
		main.Intervals = append(main.Intervals, iv)
		rep.Runs = append(rep.Runs, latency.Run{Start: iv.Start, End: iv.End})
	}
	main.Sum()
	rep.Series = []*latency.Series{main}
	return rep, days, nil
}
