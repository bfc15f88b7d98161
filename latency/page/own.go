package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

// OwnMark is behind a percentile that the bench's own host accounts for, wherever it is shown.
const OwnMark = "*"

// ownMark returns OwnMark if a report's own host accounts for a statistic, otherwise "".
func ownMark(r *report.Report, st compare.Stat) string {
	if q, ok := st.Quantile(); ok && r.OwnAt(q) {
		return OwnMark
	}
	return ""
}

// Quantile formats a percentile of a report, marked if its own host accounts for it.
func Quantile(r *report.Report, q float64) string {
	if !r.Measured() {
		return "–"
	}
	text := latency.FormatNS(r.Quantile(q))
	if r.OwnAt(q) {
		text += OwnMark
	}
	return text
}

// OwnText explains the marks of a report; it is empty if there are none.
func OwnText(r *report.Report) string {
	names := r.OwnPercentiles()
	if names == nil {
		return ""
	}
	return fmt.Sprintf("this host's own lag accounts for %s (marked %s)", strings.Join(names, ", "), OwnMark)
}

// lateText is the headline's part about round trips from the intended send, if they differ from those from the actual
// send because this host sent late; otherwise "".
func lateText(r *report.Report) string {
	late := func(st compare.Stat) bool { q, ok := st.Quantile(); return ok && r.LateAt(q) }
	if !slices.ContainsFunc(compare.Stats(latency.AnswerText), late) {
		return ""
	}
	return "; from the intended send " + Figures(r, latency.AnswerText)
}

// notOffered reports whether this host could not keep the rate of a report.
func notOffered(r *report.Report) bool {
	return slices.ContainsFunc(r.Warnings, func(text string) bool { return strings.HasPrefix(text, report.NotOffered) })
}

// hostLimited reports whether this host, and not the target, determines a report as a whole. A tail that is this host's
// is marked, and leaves the median.
func hostLimited(r *report.Report) bool {
	return notOffered(r) || r.OwnAt(0.5)
}

// limited names the reports that hostLimited finds among all.
func limited(all []*report.Report) (names []string) {
	for _, r := range all {
		if hostLimited(r) {
			names = append(names, r.Name())
		}
	}
	return names
}

// ownNamed names those statistics of a headline that this host's own lag accounts for.
func ownNamed(r *report.Report) string {
	var names []string
	for _, st := range compare.Stats(latency.AnswerText) {
		if ownMark(r, st) != "" {
			names = append(names, st.String())
		}
	}
	return strings.Join(names, ", ")
}
