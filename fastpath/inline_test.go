package fastpath

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// inlineBudget is the greatest cost of a function that the compiler still inlines (go/src/cmd/compile/internal/inline).
const inlineBudget = 80

// Every function of leaf.go is inlined where it is called, according to the compiler's report.
func TestLeavesInline(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m=2", "github.com/rebound-nic/rebound/fastpath").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cost := map[string]int{}
	for _, m := range regexp.MustCompile(`leaf\.go:\d+:\d+: can inline (\S+) with cost (\d+)`).FindAllStringSubmatch(
		string(out), -1) {
		cost[strings.TrimPrefix(m[1], "(*Responder).")], _ = strconv.Atoi(m[2])
	}
	src := must.Get(os.ReadFile("leaf.go"))(t)
	leaves := regexp.MustCompile(`(?m)^func (?:\(r \*Responder\) )?(\w+)\(`).FindAllStringSubmatch(string(src), -1)
	if len(leaves) < 3 {
		t.Fatalf("%d leaves in leaf.go", len(leaves))
	}
	for _, l := range leaves {
		if c, ok := cost[l[1]]; !ok || c > inlineBudget {
			t.Errorf("%s is not inlined; its cost: %s", l[1],
				regexp.MustCompile(`\b`+l[1]+`: .*cost \d+`).FindString(string(out)))
		} else {
			t.Logf("%-10s %d", l[1], c)
		}
	}
}

// The sequence in the package documentation, which drivers adopt, is the one that is tested here.
func TestDocumentedSequence(t *testing.T) {
	doc := must.Get(os.ReadFile("doc.go"))(t)
	tested := must.Get(os.ReadFile("snippet_test.go"))(t)
	var code strings.Builder
	for l := range strings.Lines(string(doc)) {
		if l, ok := strings.CutPrefix(l, "//\t"); ok {
			code.WriteString("\t" + strings.ReplaceAll(l, "fastpath.", ""))
		}
	}
	if code.Len() == 0 || !strings.Contains(string(tested), code.String()) {
		t.Errorf("doc.go has\n%s", code.String())
	}
}
