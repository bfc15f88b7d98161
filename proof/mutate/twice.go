package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// noticed is which of a package's tests notice which mutations, by name and number.
type noticed map[string]map[int]bool

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// twice prints, for each package, the tests whose every mutation another test of the package notices, too: longest
// first, each without those before it. They may still be worth their lines, for what no mutation changes.
func (r *trial) twice(all []mutation) error {
	for _, t := range r.known {
		found, err := r.noticed(t, all)
		if err != nil {
			return err
		}
		length, err := lengths(t.dir)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			continue
		}
		names, lines := found.unneeded(length)
		for _, name := range names {
			fmt.Printf("%5d lines  %s, which notices %d\n", length[name], name, len(found[name]))
		}
		fmt.Printf("%5d lines of tests of %s notice nothing that others do not\n", lines, t.pkg)
	}
	return nil
}

// noticed tries the mutations of a package with all of its tests. Every test that runs by itself has an element.
func (r *trial) noticed(t *tests, all []mutation) (noticed, error) {
	found, mu, next := noticed{}, sync.Mutex{}, 0
	mine := slices.DeleteFunc(slices.Clone(all), func(m mutation) bool { return m.pkg != t.pkg || !m.switched })
	for len(mine) > 0 && t.learnt < len(r.ways) {
		if err := r.learn(t, len(r.ways)-1); err != nil {
			return nil, err
		}
	}
	for _, s := range t.singles {
		found[s.name] = map[int]bool{}
	}
	return found, r.each(func(int) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(mine) {
			return false, nil
		}
		m := mine[next]
		next++
		mu.Unlock()
		by, err := r.allThatNotice(t, m)
		mu.Lock()
		for _, name := range by {
			if found[name] != nil {
				found[name][m.number] = true
			}
		}
		return true, err
	})
}

// allThatNotice returns the tests that fail with a mutation.
func (r *trial) allThatNotice(t *tests, m mutation) (by []string, err error) {
	env := []string{goFlags(r.dir), fmt.Sprint(choose, "=", m.number)}
	try := func(some []single) (result, []byte, error) {
		var names []string
		took := pack
		for _, s := range some {
			names = append(names, s.name)
			took += s.took
		}
		return t.runOnce(t.program, r.ways[some[0].way], slowest(took, r.limit), env, []string{only(names)})
	}
	for k := range r.ways {
		reach := slices.DeleteFunc(slices.Clone(t.singles), func(s single) bool {
			return s.way != k || m.probed && s.reaches[m.number] == 0
		})
		if len(reach) == 0 {
			continue
		}
		got, said, err := try(reach)
		if err != nil {
			return nil, err
		}
		failed := failedTest.FindAllSubmatch(said, -1)
		switch {
		case got != killed:
		case bytes.Contains(said, []byte("\npanic: ")) || bytes.Contains(said, []byte("\nfatal error: ")) || len(failed) == 0:
			for _, s := range reach { // one ended the process before the others ran
				got, _, err := try([]single{s})
				if err != nil {
					return nil, err
				}
				if got == killed {
					by = append(by, s.name)
				}
			}
		default:
			for _, f := range failed {
				by = append(by, string(f[1]))
			}
		}
	}
	slices.Sort(by)
	return slices.Compact(by), nil
}

// unneeded returns the tests without which the others notice the same, the longest first, and the sum of their lines.
func (n noticed) unneeded(length map[string]int) (names []string, lines int) {
	times := map[int]int{} // tests that notice a mutation
	for _, numbers := range n {
		for number := range numbers {
			times[number]++
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(length[b], length[a]), cmp.Compare(a, b))
	}) {
		needed := !strings.HasPrefix(name, "Test")
		for number := range n[name] {
			needed = needed || times[number] == 1
		}
		if needed {
			continue
		}
		for number := range n[name] {
			times[number]--
		}
		names, lines = append(names, name), lines+length[name]
	}
	return names, lines
}

// lengths are the lines of a folder's tests, by name.
func lengths(dir string) (map[string]int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for _, file := range files {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && listed.MatchString(f.Name.Name) {
				all[f.Name.Name] = set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
			}
		}
	}
	return all, nil
}
