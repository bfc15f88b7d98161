// Command mutate breaks the code in random places and reports how often the tests of the broken package notice.
//
// A mutation changes one operator, number, condition or statement of the code outside of proof/. Files are not
// modified: go test gets the change as an overlay, and GOFLAGS passes it to programs that tests build. A test that
// fails or hangs kills the mutation; a mutation that does not compile is replaced by the next one. The same seed on the
// same source gives the same mutations.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	n := flag.Int("n", 200, "`number` of mutations")
	seed := flag.Uint64("seed", 1, "`seed` of their choice")
	skip := flag.Int("skip", 0, "`number` of candidates to leave out, to go on where an earlier run stopped")
	short := flag.Bool("short", false, "only the tests of make check: no root, no network")
	limit := flag.Duration("limit", 3*time.Minute, "`time` for the tests of a package, after which they count as failed")
	spend := flag.Duration("for", 24*time.Hour, "`time` after which no further mutation is tried")
	only := flag.String("packages", "./...", "`pattern` of packages")
	flag.Parse()
	if err := run(*n, *skip, *seed, *short, *limit, *spend, *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(n, skip int, seed uint64, short bool, limit, spend time.Duration, only string) error {
	files, err := sources(only)
	if err != nil {
		return err
	}
	all, err := pick(files, seed)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	count := map[result]int{}
	next, start := skip, time.Now()
	for ; next < len(all) && count[killed]+count[survived] < n && time.Since(start) < spend; next++ {
		m := all[next]
		r, err := try(dir, m, short, limit)
		if err != nil {
			return err
		}
		count[r]++
		fmt.Printf("%s %s %v\n", r, m.pkg, m)
	}
	fmt.Printf("%d killed, %d survived; %d did not compile; continue with -skip %d\n", count[killed], count[survived], count[invalid], next)
	return nil
}

// sources maps the files of packages that have tests to their packages.
func sources(pattern string) (map[string]string, error) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles", pattern).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pattern, err)
	}
	files := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir                    string
			GoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || strings.Contains(p.ImportPath+"/", "/proof/") {
			continue
		}
		for _, f := range p.GoFiles {
			files[filepath.Join(p.Dir, f)] = p.ImportPath
		}
	}
	return files, nil
}

type result string

const (
	killed   result = "killed"
	survived result = "SURVIVED"
	invalid  result = "invalid"
)

// try runs the tests of a package with one mutation.
func try(dir string, m mutation, short bool, limit time.Duration) (result, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err := errors.Join(err, os.WriteFile(changed, m.apply(source), 0o644), os.WriteFile(overlay, b, 0o644)); err != nil {
		return "", err
	}
	env := append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	args := []string{"test", "-count=1", "-failfast", "-vet=off", "-timeout", limit.String()}
	if short {
		args = append(args, "-short")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	test := exec.CommandContext(ctx, "go", append(args, m.pkg)...)
	test.Env = env
	test.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a mutated test may leave child processes
	test.Cancel = func() error { return syscall.Kill(-test.Process.Pid, syscall.SIGKILL) }
	test.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	test.Stdout, test.Stderr = &said, &said
	err = test.Run()
	if test.Process != nil {
		syscall.Kill(-test.Process.Pid, syscall.SIGKILL)
	}
	switch {
	case err == nil:
		return survived, nil
	case bytes.Contains(said.Bytes(), []byte("[build failed]\n")), bytes.Contains(said.Bytes(), []byte("[setup failed]\n")):
		return invalid, nil
	case errors.As(err, new(*exec.ExitError)), ctx.Err() != nil:
		return killed, nil
	}
	return "", err
}
