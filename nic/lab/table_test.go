package lab

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// proof is one line of the table that a run ends with: on which rung whose code ran on or against what, and how much.
type proof struct{ card, rung, who, what string }

var proofs struct {
	sync.Mutex
	all []proof
}

// proven adds a line, unless the test has failed. The card is the first part of the test's name that is no function's.
func proven(t *testing.T, rung, who, what string, args ...any) {
	t.Helper()
	if t.Failed() {
		return
	}
	card := t.Name()
	if part := strings.Split(card, "/"); len(part) > 1 {
		card = part[1]
	}
	proofs.Lock()
	defer proofs.Unlock()
	proofs.all = append(proofs.all, proof{card, rung, who, fmt.Sprintf(what, args...)})
}

// TestMain prints the table behind the tests of "go test -v".
func TestMain(m *testing.M) {
	code := m.Run()
	if testing.Verbose() && len(proofs.all) > 0 {
		slices.SortStableFunc(proofs.all, func(a, b proof) int {
			return cmp.Or(cmp.Compare(a.card, b.card), cmp.Compare(a.rung, b.rung), cmp.Compare(a.who, b.who))
		})
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nNIC\trung\twhose code\twhat passed")
		for _, p := range proofs.all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.card, p.rung, p.who, p.what)
		}
		w.Flush()
	}
	os.Exit(code)
}
