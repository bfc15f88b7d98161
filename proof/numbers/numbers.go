// Package numbers finds numbers in the output of a command that are not written as package latency writes them.
package numbers

import (
	"html"
	"regexp"
	"strings"
)

// nouns are what is counted.
const nouns = "probe|run|point|pair|sample|report|note|second|minute|hour|day|window|target|path|host|slice|frame|packet|time|measurement|suspect|failure|request|line|cell"

// styles are the ways in which no number is written. Commands, settings and addresses in a text are removed before.
var styles = []struct {
	name string
	is   *regexp.Regexp
}{
	{"per cent without a space (latency.FormatShare, FormatChange)", regexp.MustCompile(`\d%`)},
	{"a factor in per cent (latency.FormatChange)", regexp.MustCompile(`(^|[^\d.,])(\d{4,}|\d[\d,]*,\d{3})(\.\d+)? %`)},
	{"a duration without a space (latency.FormatNS)", regexp.MustCompile(`(^|[\s(\[±<])[-+]?\d+(\.\d+)?(ns|µs|ms|s|m\d|m\d+s|h\d+m)([\s,;:.)\]]|$)`)},
	{"a count without a separator (latency.FormatCount)", regexp.MustCompile(`(^|[\s(\[<>±+-])\d{5,}([,;:.)\]</]|\s[^%]|$)`)},
	{"thousands with a space (latency.FormatCount)", regexp.MustCompile("\\d[\u202f\u2009]\\d{3}")},
	{"no number of a rate (latency.FormatBits)", regexp.MustCompile(`\b0\.0 [kMG]bit/s`)},
	{"a count without a separator (latency.FormatCount)", regexp.MustCompile(`(^|[\s(])\d{4,} (of|` + nouns + `)s?\b`)},
	{"a plural of one (sanitize.Count)", regexp.MustCompile(`(^|[\s(])1 (more )?(` + nouns + `|replie)s\b`)},
	{"a verb of several for one", regexp.MustCompile(`(^|\s)1 (of [\d,]+ )?[a-z]+ (fail|have|are|need|lose|work)\b`)},
	{"a singular of several (sanitize.Count)", regexp.MustCompile(`\b([2-9]|\d\d) (probe|run|point|pair|sample|report|window|path|host|slice|reply|suspect)([,;.)]|$)`)},
	{"not a number", regexp.MustCompile(`\b(NaN|[+-]?Inf)\b`)},
}

var (
	markup   = regexp.MustCompile(`(?s)<style.*?</style>|<script.*?</script>|<text.*?</text>|<[^>]*>`)
	data     = regexp.MustCompile(`(?s)<metadata.*?</metadata>|<svg.*?</svg>`)
	figures  = regexp.MustCompile(`(?m)^.*\t.*$`) // of drawings, for spreadsheets
	settings = regexp.MustCompile(
		`-[a-z][a-z-]+[ =][^\s)]+|\b(RFC|port|ports|core|CPU|pid|seed|bytes of|only|address) \d+`)
)

// Others returns the numbers of a text, or of a page without its drawings, that are written in another way, each with
// its line. Lines for which skip returns true are not read: they quote other programs.
func Others(text string, skip func(line string) bool) (found []string) {
	if strings.Contains(text, "</html>") {
		text = figures.ReplaceAllString(html.UnescapeString(
			markup.ReplaceAllString(data.ReplaceAllString(text, ""), "\n")), "")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if skip != nil && skip(line) {
			continue
		}
		plain := settings.ReplaceAllString(strings.ReplaceAll(line, "\u00a0", " "), "")
		for _, s := range styles {
			if at := s.is.FindString(plain); at != "" {
				found = append(found, s.name+": "+strings.TrimSpace(at)+" in: "+line)
			}
		}
	}
	return found
}
