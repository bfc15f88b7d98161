package house_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// columns is the longest line of Go, with tabs of four.
const columns = 120

// A line may be longer if it is a row of a table, a case, a table in a comment, or has a string or an address that is
// not split.
var (
	tableRow   = regexp.MustCompile(`^(\{|"|[\w.]+:|.*: \{|.*, \{).*\},?( //.*)?$`)
	longString = regexp.MustCompile("`|\"(?:[^\"\\\\]|\\\\.){50,}|\\\\n|://|^//.*\\S {2,}\\S")
	caseOf     = regexp.MustCompile(`^(case |default:|\} )`)
)

func TestLineLength(t *testing.T) {
	needs.Tree(t)
	out := must.Get(exec.Command("git", "ls-files", "-z", "*.go").Output())(t)
	for _, name := range strings.Split(strings.Trim(string(out), "\x00"), "\x00") {
		text := string(must.Get(os.ReadFile(name))(t))
		if strings.Contains(text[:min(len(text), 400)], "Code generated") || strings.Contains(name, "/testdata/") {
			continue
		}
		raw := false // inside of a string of several lines
		for i, line := range strings.Split(text, "\n") {
			was := raw
			if !strings.HasPrefix(strings.TrimSpace(line), "//") && strings.Count(line, "`")%2 == 1 {
				raw = !raw
			}
			n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			code := strings.TrimSpace(line)
			if n <= columns || was || raw || tableRow.MatchString(code) || longString.MatchString(code) ||
				caseOf.MatchString(code) ||
				strings.HasPrefix(code, "//go:") {
				continue
			}
			t.Errorf("%s:%d has %d columns, more than %d", name, i+1, n, columns)
		}
	}
}
