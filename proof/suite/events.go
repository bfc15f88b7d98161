package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An event is a line of "go test -json" (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64

	ImportPath  string // of a build-output event
	FailedBuild string // of a package that did not compile
}

// An outcome is the result of one test, of one package or of one step such as a build.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// A test is one run of one test or subtest.
type test struct {
	name    string
	outcome outcome // "" while it runs
	seconds float64
	output  strings.Builder
}

// A pkg is a package under test.
type pkg struct {
	name    string
	running map[string]*test // of the current repetition, by name
	output  strings.Builder  // output outside of any test
	tally
}

// A reader turns the events of one "go test -json" into results.
type reader struct {
	variant string // of the packages, such as "race"
	// failure is called with the output of each failed test, as soon as it has failed.
	failure func(pkg, test, output string)
	// ended, if set, is called for each test and subtest.
	ended func(pkg, test string, o outcome, seconds float64)
	// finished is called for each package that has tests.
	finished func(pkg string, o outcome, t tally, took time.Duration)
	reused   int // packages whose results are those of an earlier run

	packages map[string]*pkg
	builds   map[string]*strings.Builder // compiler output by import path
	rest     strings.Builder             // lines that are not JSON
}

// read reads events until the end of in. Every package without an end event counts as failed.
func (r *reader) read(in io.Reader) error {
	r.packages, r.builds = map[string]*pkg{}, map[string]*strings.Builder{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case line[0] != '{' || json.Unmarshal(line, &e) != nil:
			r.rest.Write(line)
		default:
			r.event(e)
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		r.end(r.packages[name], event{Action: "fail", Output: "the test process was killed"})
	}
	return nil
}

func (r *reader) event(e event) {
	if e.Action == "build-output" {
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = &strings.Builder{}
		}
		r.builds[e.ImportPath].WriteString(e.Output)
	}
	if e.Package == "" {
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{name: short(e.Package, r.variant), running: map[string]*test{}}
		r.packages[e.Package] = p
	}
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output.WriteString(e.Output)
		case "pass", "fail", "skip":
			delete(r.packages, e.Package)
			r.end(p, e)
		}
		return
	}
	t := p.running[e.Test]
	if t == nil || e.Action == "run" {
		if top, _, sub := strings.Cut(e.Test, "/"); !sub {
			p.count(top)
		}
		t = &test{name: e.Test}
		p.running[e.Test] = t
	}
	switch e.Action {
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		t.outcome, t.seconds = outcome(e.Action), e.Elapsed
		if text := plain(t.output.String()); t.outcome == failed && text != "" {
			r.failure(p.name, t.name, text)
		}
		if r.ended != nil {
			r.ended(p.name, t.name, t.outcome, t.seconds)
		}
	}
}

// end reports a package whose tests have ended.
func (r *reader) end(p *pkg, e event) {
	o := outcome(e.Action)
	if o == skipped && len(p.running) == 0 {
		return // no test files
	}
	for _, name := range slices.Sorted(maps.Keys(p.running)) {
		if t := p.running[name]; t.outcome == "" { // the process ended during this test
			t.outcome = failed
			r.failure(p.name, t.name, plain(t.output.String())+"(did not end)\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.running)) {
		if !strings.Contains(name, "/") {
			p.count(name)
		}
	}
	if o == failed && len(p.Failed) == 0 {
		text := p.output.String() + e.Output
		if b := r.builds[e.FailedBuild]; b != nil {
			text = b.String()
		}
		r.failure(p.name, "", text)
		p.fail(p.name, "")
	}
	if strings.Contains(p.output.String(), "\t(cached)") {
		r.reused++
	}
	r.finished(p.name, o, p.tally, time.Duration(e.Elapsed*float64(time.Second)))
}

// count adds a top-level test and its subtests to the tally. A test with subtests counts only if it failed or was
// skipped itself.
func (p *pkg) count(top string) {
	var family []*test
	for name, t := range p.running {
		if name == top || strings.HasPrefix(name, top+"/") {
			family = append(family, t)
			delete(p.running, name)
		}
	}
	slices.SortFunc(family, func(a, b *test) int { return strings.Compare(a.name, b.name) })
	for _, t := range family {
		below := func(o outcome) bool {
			return slices.ContainsFunc(family, func(s *test) bool {
				return strings.HasPrefix(s.name, t.name+"/") && (o == "" || s.outcome == o)
			})
		}
		p.Slow = append(p.Slow, timing{p.name, t.name, t.seconds})
		switch {
		case t.outcome == failed && !below(failed):
			p.fail(p.name, t.name)
		case t.outcome == failed || below(""):
		case t.outcome == skipped:
			p.skip(p.name, t.name, reason(t.output.String()))
		default:
			p.Passed++
		}
	}
}

var (
	framing  = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|FAIL|SKIP):)`)
	location = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)
)

// plain is a test's output without go test's own lines.
func plain(output string) string {
	var b strings.Builder
	for line := range strings.Lines(output) {
		if !framing.MatchString(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// reason is the reason that a skipped test gave.
func reason(output string) string {
	why := "no reason given"
	for line := range strings.Lines(plain(output)) {
		if at := location.FindString(line); at != "" {
			why = strings.TrimSpace(line[len(at):])
		}
	}
	return why
}

const module = "github.com/rebound-nic/rebound"

// short is a package's name without the module's.
func short(importPath, variant string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	if name == "" {
		name = "."
	}
	if variant != "" {
		name = fmt.Sprintf("%s (%s)", name, variant)
	}
	return name
}
