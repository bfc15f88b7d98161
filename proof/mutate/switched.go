package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Environment variables of programs with all mutations: the number of the one that is on, and a file with a byte for
// each, which is set when it is reached.
const (
	choose  = "REBOUND_MUTATION"
	reaches = "REBOUND_REACHED"
)

// reachedFolder has these files. Tests in the sandbox may write there.
func reachedFolder(dir string) string { return filepath.Join(dir, "reached") }

// switchAll makes the overlay of all mutations, whose number is their index, plus 1, and compiles their packages. A
// mutation that has to be compiled by itself leaves there that its statement is reached, if it is in one.
func switchAll(dir string, all []mutation) error {
	if len(all) == 0 {
		return nil
	}
	of := map[string]bool{}
	for _, m := range all {
		of[m.pkg] = true
	}
	pkgs := slices.Sorted(maps.Keys(of))
	types, err := loadTypes(pkgs)
	if err != nil {
		return err
	}
	edits := map[string]map[int]*edit{} // by file and number
	sources := map[string]*source{}
	for i := range all {
		m := &all[i]
		m.number = i + 1
		if sources[m.file] == nil {
			text, err := os.ReadFile(m.file)
			if err != nil {
				return err
			}
			if sources[m.file], err = newSource(types[m.pkg], m.file, text); err != nil {
				return err
			}
			edits[m.file] = map[int]*edit{}
		}
		e := sources[m.file].edit(*m, m.number)
		if m.switched = e != nil; e == nil {
			e = sources[m.file].probe(*m, m.number)
		}
		if m.probed = e != nil; m.probed {
			edits[m.file][m.number] = e
		}
	}
	for {
		texts := map[string]string{}
		for file, some := range edits {
			if len(some) > 0 {
				texts[file] = render(sources[file].text, slices.Collect(maps.Values(some)))
				texts[filepath.Join(filepath.Dir(file), "zz_mutations.go")] = switchFile(sources[file].Name)
			}
		}
		replaced, err := overlay(dir, texts)
		if err != nil {
			return err
		}
		said, err := compile(dir, append([]string{"build", "-gcflags=-e", "-o", os.DevNull}, pkgs...)...)
		if err != nil || said == "" {
			return err
		}
		for file, by := range replaced {
			texts[filepath.Base(by)] = texts[file]
		}
		numbers := rejected(said, texts)
		if len(numbers) == 0 {
			return fmt.Errorf("the compiler rejects the mutations: %s", said)
		}
		slices.Sort(numbers)
		for _, number := range slices.Compact(numbers) {
			m := &all[number-1]
			delete(edits[m.file], number)
			e := sources[m.file].probe(*m, number)
			if m.probed = m.switched && e != nil; m.probed {
				edits[m.file][number] = e
			}
			m.switched = false
		}
	}
}

// overlay has the compiler read other texts instead of files, and returns the names of files with these, which differ.
func overlay(dir string, texts map[string]string) (map[string]string, error) {
	replace, err := map[string]string{}, os.MkdirAll(dir, 0o755)
	for file, text := range texts {
		replace[file] = filepath.Join(dir, fmt.Sprint(len(replace), "-", filepath.Base(file)))
		err = errors.Join(err, os.WriteFile(replace[file], []byte(text), 0o644))
	}
	b, _ := json.Marshal(map[string]any{"Replace": replace}) // strings
	return replace, errors.Join(err, os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o644))
}

// compile runs the go command with the overlay, outside of the sandbox: this machine's build cache keeps what is not
// mutated. It returns what the compiler says if it rejects a package.
func compile(dir string, args ...string) (string, error) {
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), goFlags(dir))
	out, err := build.CombinedOutput()
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, new(*exec.ExitError)) && bytes.HasPrefix(out, []byte("# ")): // what the compiler says
		return string(out), nil
	}
	return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
}

// compileTests makes the test program of a package, without debug information, as go test does.
func compileTests(dir, program, pkg string) (string, error) {
	return compile(dir, "test", "-c", "-vet=off", "-ldflags=-w", "-o", program, pkg)
}

func goFlags(dir string) string {
	return "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+filepath.Join(dir, "overlay.json"))
}
