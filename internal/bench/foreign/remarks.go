package foreign

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/rebound-nic/rebound/latency/sanitize"
)

// remark is what several lines of a file have in common.
type remark struct {
	what  string
	lines int
	first int
}

// maxRemarks bounds the kinds of lines that a file's warnings name.
const maxRemarks = 20

// remark notes a line that is no latency. Lines with the same meaning become one warning, which names the first of
// them.
func (m *measurement) remark(line int, what string) {
	for i := range m.remarks {
		if m.remarks[i].what == what {
			m.remarks[i].lines++
			return
		}
	}
	if len(m.remarks) == maxRemarks {
		m.remarks = append(m.remarks, remark{"other lines that are no latencies", 0, line})
	}
	if len(m.remarks) > maxRemarks {
		m.remarks[maxRemarks].lines++
		return
	}
	m.remarks = append(m.remarks, remark{what, 1, line})
}

// unparsed counts a line that may be a probe's outcome and is not understood. A line of another tool is an error.
func (m *measurement) unparsed(f *file, n int, line string) error {
	for _, s := range signatures {
		if s.tool != f.format && s.line.MatchString(line) {
			return f.bad(n, "a line of %s: put the output of each tool into its own file", s.tool)
		}
	}
	m.counts.Unparsed++
	if m.odd == "" {
		m.odd = fmt.Sprintf("line %d, %.80q", n, line)
		m.oddLine = n
	}
	return nil
}

// signatures are lines by which a tool's output is recognized within that of another.
var signatures = []struct {
	tool string
	line *regexp.Regexp
}{
	{"ping output", regexp.MustCompile(`^(?:\[[\d.]+\] )?\d+ bytes from .*seq=\d+ .*time[=<]`)},
	{"fping output", regexp.MustCompile(`^(?:\[[\d.]+\] )?\S+\s*: (?:\[\d+\], (?:\d+ bytes, |timed out)|xmt/rcv/%loss = )`)},
	{"Windows ping output", regexp.MustCompile(`: bytes=\d+ \S+[=<]\d+ ?ms TTL=\d+$`)},
	{"HdrHistogram log", regexp.MustCompile(`,HIST[A-Za-z0-9+/]{8}|^#\[Histogram log format`)},
	{"sockperf full log", regexp.MustCompile(`^packet, txTime\(sec\), rxTime`)},
}

// conclude turns remarks into warnings.
func (m *measurement) conclude() {
	if m.odd != "" {
		text := fmt.Sprintf("lines not understood: %d, the first is %s", m.counts.Unparsed, m.odd)
		if m.hint != "" {
			text += " (" + m.hint + ")"
		}
		m.warnings = append(m.warnings, text)
	}
	for _, r := range m.remarks {
		if r.lines == 1 {
			m.warnings = append(m.warnings, fmt.Sprintf("line %d: %s", r.first, r.what))
		} else {
			m.warnings = append(m.warnings, fmt.Sprintf("%s, the first is %d: %s", sanitize.Count(r.lines, "line"),
				r.first, r.what))
		}
	}
	m.remarks, m.odd = nil, ""
}

// differs warns if a number in the file's own summary is not what its lines add up to.
func (m *measurement) differs(line int, what string, summary, parsed int64) {
	if summary != parsed {
		m.warnings = append(m.warnings, fmt.Sprintf("line %d: the file's own summary has %d %s, its lines have %d",
			line, summary, what, parsed))
	}
}

// ansi matches the escape sequences that color a terminal.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func plainLine(line string) string {
	if !strings.Contains(line, "\x1b") {
		return line
	}
	return strings.TrimSpace(ansi.ReplaceAllString(line, ""))
}
