package lab

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// proof is one line of the table printed at the end of a run: the rung, whose code ran on or against what, and the
// amount of traffic.
type proof struct{ card, rung, who, what string }

var proofs struct {
	sync.Mutex
	all []proof
}

// proven adds a line, unless the test has failed. The card is the first part of the test's name that is not the name of
// a function.
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

// usages are the runs of guests with their times.
var usages struct {
	sync.Mutex
	all []usage
}

type usage struct {
	name string
	Usage
}

func used(t *testing.T, u Usage) {
	t.Logf("guest: saved in %.1fs, resumed in %.1fs, script %.1fs, QEMU computed %.1fs, %d attempts", u.Boot.Seconds(),
		u.Resume.Seconds(), u.Script.Seconds(), u.CPU.Seconds(), u.Boots)
	usages.Lock()
	defer usages.Unlock()
	usages.all = append(usages.all, usage{t.Name(), u})
}

// writeTimes writes the time of each guest by phase, the longest script first, to the file in REBOUND_LAB_TIMES.
func writeTimes(w io.Writer) {
	slices.SortFunc(usages.all, func(a, b usage) int { return cmp.Compare(b.Script, a.Script) })
	fmt.Fprintln(w, "| scenario | boot, once per kind of guest (s) | resume (s) | script (s) | QEMU's CPU time (s) |\n|---|---|---|---|---|")
	var sum Usage
	row := func(name string, u Usage) {
		fmt.Fprintf(w, "| %s | %.1f | %.1f | %.1f | %.1f |\n", name, u.Boot.Seconds(), u.Resume.Seconds(),
			u.Script.Seconds(), u.CPU.Seconds())
	}
	for _, u := range usages.all {
		row(u.name, u.Usage)
		sum.Boot, sum.Resume, sum.Script, sum.CPU = sum.Boot+u.Boot, sum.Resume+u.Resume, sum.Script+u.Script,
			sum.CPU+u.CPU
	}
	row("sum", sum)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if name := os.Getenv("REBOUND_LAB_TIMES"); name != "" {
		f, err := os.Create(name)
		if err == nil {
			writeTimes(f)
			err = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
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
