package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Environment variables of a program with many mutations: the number of the one that is on, and a file with a byte for
// each, which is set when it is reached.
const (
	choose  = "REBOUND_MUTATION"
	reaches = "REBOUND_REACHED"
)

// switched is a test program with many mutations of a package, and the tests that pass in it without one.
type switched struct {
	dir     string // has the program and its overlay
	bytes   string // the file of what is reached
	most    int    // number of a mutation
	numbers map[string]int
	ways    []way    // in which the tests have not run yet
	left    []string // see tests
	tests   []single // the quickest of each way first
}

// single is a test that runs by itself, and the mutations that it reaches, by number.
type single struct {
	name    string
	way     way
	took    time.Duration
	reaches []byte
}

// id tells a mutation from the others.
func (m mutation) id() string { return fmt.Sprint(m.file, " ", m.start, " ", m.with, " ", m.what) }

// reachedFile is in a folder that the tests in the sandbox may write.
func reachedFile(dir string) string { return filepath.Join(dir, "reached", "bytes") }

// number returns the number of a mutation in the program, 0 if it is not there.
func (s *switched) number(m mutation) int {
	if s == nil {
		return 0
	}
	return s.numbers[m.id()]
}

// try runs the tests that reach a mutation until one fails. The tests that take root or long are learnt when the others
// do not notice it.
func (s *switched) try(t *tests, number int) (result, error) {
	t.env = []string{choose + "=" + strconv.Itoa(number)}
	defer func() { t.env = nil }()
	r := unreached
	for next := 0; ; {
		for next < len(s.tests) {
			var names []string
			var sum time.Duration
			w := s.tests[next].way
			for ; next < len(s.tests) && s.tests[next].way == w && sum < pack; next++ {
				if s.tests[next].reaches[number] != 0 {
					names = append(names, s.tests[next].name)
					sum += s.tests[next].took
				}
			}
			if len(names) == 0 {
				continue
			}
			var err error
			r, _, err = t.run(s.dir, w, slowest(sum, t.limit), append(only(names), "-test.failfast")...)
			if err != nil || r == killed {
				return r, err
			}
		}
		if len(s.ways) == 0 {
			return r, nil
		}
		if err := s.learn(t); err != nil {
			return "", err
		}
	}
}

// pack is how long tests take together that run in one process.
const pack = 500 * time.Millisecond

var listed = regexp.MustCompile(`(?m)^(Test|Fuzz|Example)\w*$`)

// learn runs each test in the next way without a mutation. After the first way, only those that it left out run.
func (s *switched) learn(t *tests) error {
	w, env := s.ways[0], t.env
	s.ways = s.ways[1:]
	t.env = []string{choose + "=0", reaches + "=" + s.bytes}
	defer func() { t.env = env }()
	names := s.left
	if names == nil {
		_, said, err := t.run(s.dir, w, t.limit, "-test.list=.")
		if err != nil {
			return err
		}
		for _, name := range listed.FindAll(said, -1) {
			names = append(names, string(name))
		}
	}
	s.left = []string{}
	var more []single
	for _, name := range names {
		if err := os.WriteFile(s.bytes, make([]byte, s.most+1), 0o644); err != nil {
			return err
		}
		r, said, err := t.run(s.dir, w, t.limit, append(only([]string{name}), "-test.v")...)
		if err != nil {
			return err
		}
		if r != survived {
			fmt.Printf("left out %s %s: it fails without a mutation in %v\n", t.pkg, name, w)
			continue
		}
		_, left := stages(w, said, t.limit)
		if len(left) > 0 {
			s.left = append(s.left, name)
		}
		took := time.Duration(0)
		for _, v := range verdict.FindAllSubmatch(said, -1) {
			if d, err := time.ParseDuration(string(v[3]) + "s"); err == nil && v[0][0] == '-' {
				took = d
			}
		}
		b, err := os.ReadFile(s.bytes)
		if err != nil {
			return err
		}
		more = append(more, single{name, w, took, b})
	}
	slices.SortFunc(more, func(a, b single) int { return cmp.Compare(a.took, b.took) })
	s.tests = append(s.tests, more...)
	return nil
}

// newSwitched compiles the test program of a package with all mutations for which that is possible; nil if it is for
// none.
func newSwitched(dir, reached, pkg string, all []mutation, ways []way) (*switched, error) {
	p, err := loadTypes(pkg)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &switched{dir: dir, bytes: reached, most: len(all), numbers: map[string]int{}, ways: ways}
	edits := map[string]map[int]*edit{} // by file and number
	sources := map[string]*source{}
	for i, m := range all {
		if sources[m.file] == nil {
			text, err := os.ReadFile(m.file)
			if err != nil {
				return nil, err
			}
			if sources[m.file], err = newSource(p, m.file, text); err != nil {
				return nil, err
			}
			edits[m.file] = map[int]*edit{}
		}
		if e := sources[m.file].edit(m, i+1); e != nil {
			edits[m.file][i+1] = e
		}
	}
	for {
		texts := map[string]string{filepath.Join(filepath.Dir(all[0].file), "zz_mutations.go"): switchFile(p.Name)}
		n := 0
		for file, some := range edits {
			n += len(some)
			texts[file] = render(sources[file].text, slices.Collect(maps.Values(some)))
		}
		if n == 0 {
			return nil, nil
		}
		if err := overlay(dir, texts); err != nil {
			return nil, err
		}
		said, err := compile(dir, pkg, "-gcflags=-e")
		if err != nil {
			return nil, err
		}
		if said == "" {
			break
		}
		byName := map[string]string{}
		for file, text := range texts {
			byName[filepath.Base(file)] = text
		}
		dropped := 0
		for _, number := range rejected(said, byName) {
			file := all[number-1].file
			if edits[file][number] != nil {
				delete(edits[file], number)
				dropped++
			}
		}
		if dropped == 0 {
			return nil, fmt.Errorf("the compiler rejects %s with mutations: %s", pkg, said)
		}
	}
	for i, m := range all {
		if edits[m.file][i+1] != nil {
			s.numbers[m.id()] = i + 1
		}
	}
	return s, nil
}
