package campaign

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

func describe(p part) string {
	var b strings.Builder
	b.WriteString(p.kind.name)
	for _, f := range p.faults {
		b.WriteString(", " + f.name)
	}
	return b.String()
}

// A seed determines the faults, their order and their strength; each round has every fault of every kind once.
func TestPlan(t *testing.T) {
	all := regexp.MustCompile("")
	a, b, c := newPlan(5, all), newPlan(5, all), newPlan(6, all)
	want := 0
	for i := range kinds {
		want += len(faultsOf(&kinds[i]))
	}
	seen, differ := map[string]int{}, false
	for n := 0; n < 2*want; {
		p, q := a.next(), b.next()
		if describe(p) != describe(q) || p.seed != q.seed {
			t.Fatalf("one seed, two plans: %s with %d, %s with %d", describe(p), p.seed, describe(q), q.seed)
		}
		differ = differ || describe(p) != describe(c.next())
		n += len(p.faults)
		for _, f := range p.faults {
			seen[p.kind.name+": "+f.name]++
		}
	}
	for name, n := range seen {
		if n != 2 {
			t.Errorf("in two rounds %d times %s", n, name)
		}
	}
	if !differ {
		t.Error("two seeds, one plan")
	}
	if p := newPlan(1, regexp.MustCompile("^xdp: SIGKILL$")).next(); describe(p) != "xdp, SIGKILL" {
		t.Errorf("-only takes %s", describe(p))
	}
}

// echo answers some requests, depending on its configuration.
type echo struct {
	answer func(seq uint32) []uint32
	wrong  string
	queue  []uint32
}

func (e *echo) ask(seq uint32) bool { e.queue = append(e.queue, e.answer(seq)...); return true }
func (e *echo) silent()             {}

func (e *echo) take() (uint32, string, bool) {
	if len(e.queue) == 0 {
		return 0, "", false
	}
	seq := e.queue[0]
	e.queue = e.queue[1:]
	return seq, e.wrong, true
}

// Missing, duplicate and wrong replies are counted, and a responder that does not answer does not count as recovered.
func TestTraffic(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(seq uint32) []uint32
		wrong  string
		back   bool
		ok     func(c counts) bool
	}{
		{"all", func(seq uint32) []uint32 { return []uint32{seq} }, "", true, func(c counts) bool { return c.Answered >= enough && c.Twice+c.Wrong == 0 }},
		{"each twice", func(seq uint32) []uint32 { return []uint32{seq, seq} }, "", true, func(c counts) bool { return c.Answered >= enough && c.Twice >= enough-1 }},
		{"none", func(uint32) []uint32 { return nil }, "", false, func(c counts) bool { return c.Answered == 0 && c.Lost >= window }},
		{"all wrong", func(seq uint32) []uint32 { return []uint32{seq} }, "bad", false, func(c counts) bool { return c.Answered == 0 && c.Wrong >= window }},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTraffic(&echo{answer: c.answer, wrong: c.wrong})
			patience := time.Minute
			if !c.back {
				patience = lostTime
			}
			_, err := x.back(patience, func() error { return nil })
			await.Holds(func() bool {
				n, _ := x.tell()
				return c.ok(n)
			})
			x.end()
			if n, _ := x.tell(); (err == nil) != c.back || !c.ok(n) {
				t.Errorf("%v, %+v", err, n)
			}
		})
	}
}

// Late replies to requests lost before a fault do not make the loss negative.
func TestCountsSince(t *testing.T) {
	check.Equal(t, (counts{Sent: 9, Lost: 1, Late: 5}).since(counts{Sent: 4, Lost: 3, Late: 1}),
		(counts{Sent: 5, Late: 4}), "%+v")
}

func needRoot(t *testing.T) {
	t.Helper()
	needs.Root(t, "network namespaces, XDP and mounts")
}

// A short campaign of a few seconds: devices of three kinds and an XDP program are reset, removed and killed, and a
// disk is full.
func TestCampaign(t *testing.T) {
	needRoot(t)
	campaign, responder := programs.Path(t, "prove"), programs.Path(t, "responder")
	out := filepath.Join(t.TempDir(), "report")
	c := exec.Command(campaign, "campaign", "-responder", responder, "-seed", "1", "-duration", "8s", "-patience", "5m",
		"-out", out,
		"-only", "^(ixgbe|efa|xdp pinned): (function reset|removal|SIGKILL|SIGTERM|full disk|link flap|malformed.*|scrapes.*)$")
	said, err := c.CombinedOutput()
	steps, _ := os.ReadFile(filepath.Join(out, "steps.log"))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, said, steps)
	}
	page, err := os.ReadFile(filepath.Join(out, "campaign.md"))
	if err != nil || !bytes.Contains(page, []byte("-seed 1 ")) || !bytes.Contains(page, []byte(" 0 failures.")) {
		t.Errorf("%v\n%s", err, page)
	}
	if n := bytes.Count(steps, []byte("; back after ")); n == 0 {
		t.Errorf("no faults:\n%s", steps)
	}
	t.Logf("%s%s", said, steps)
}

// A campaign whose responder does not recover fails, and a campaign with wrong arguments says so.
func TestCampaignFails(t *testing.T) {
	needRoot(t)
	campaign := programs.Path(t, "prove")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-responder", "/bin/false", "-seed", "1", "-duration", "1s", "-patience", "2s", "-only", "^ixgbe: SIGKILL$"}, 1, "FAILED part 0, ixgbe, start: it does not answer"},
		{[]string{"-only", "no such fault", "-responder", "/bin/false"}, 2, "no fault matches"},
		{[]string{"-duration", "0s"}, 2, "above zero"},
	} {
		work := t.TempDir()
		cmd := exec.Command(campaign, slices.Concat([]string{"campaign"}, c.args,
			[]string{"-out", filepath.Join(t.TempDir(), "out")})...)
		cmd.Env = append(os.Environ(), "TMPDIR="+work)
		said, err := cmd.CombinedOutput()
		if left, _ := os.ReadDir(work); len(left) > 0 {
			t.Errorf("%v: left behind: %v", c.args, left)
		}
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != c.code || !bytes.Contains(said, []byte(c.says)) {
			t.Errorf("%v: %v\n%s", c.args, err, said)
		}
	}
}
