package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// build builds one program under its installed name: static, without symbols (a stack trace does not need them), and
// without the names of folders of this machine. The linker stamps it with version, revision and time of the commit,
// which are the same in every clone of the commit.
func (o *options) build(program, to, arch string) error {
	return o.run("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", to,
		"./cmd/"+strings.TrimPrefix(program, prefix))(arch)
}

// buildDiscover builds rebound-discover. It has no symbol table, which is 30 % of its size; stack traces do not need
// it.
func (o *options) buildDiscover(to string) error {
	from := cmp.Or(o.discovery, "fleet/discovery")
	return o.run("go", "-C", from, "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", to, ".")(o.arch)
}

// run runs a command in the repository, for an architecture.
func (o *options) run(name string, args ...string) func(arch string) error {
	return func(arch string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = o.root
		cmd.Env = append(append(os.Environ(), o.env...), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1",
			"GOARM64=v8.0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
		}
		return nil
	}
}

// stamp is the build information that the linker recorded.
type stamp struct {
	version string // "v1.2.0" or a pseudo-version with the commit's time and hash; "(devel)" outside of a repository
	time    time.Time
}

func readStamp(program string) (s stamp, err error) {
	b, err := buildinfo.ReadFile(program)
	if err != nil {
		return s, err
	}
	s.version = b.Main.Version
	for _, v := range b.Settings {
		if v.Key == "vcs.time" {
			if s.time, err = time.Parse(time.RFC3339, v.Value); err != nil {
				return s, fmt.Errorf("%s: vcs.time: %w", program, err)
			}
		}
	}
	if s.time.IsZero() {
		return s, fmt.Errorf("%s has no revision: a package is built in a clone of the repository (not in a further worktree of one: the go command reads no revision there), with git installed", program)
	}
	return s, nil
}

// debian returns the version in dpkg's order: a pre-release sorts before its release.
func (s stamp) debian() string {
	v := strings.TrimPrefix(s.version, "v")
	if head, tail, pre := strings.Cut(v, "-"); pre {
		v = head + "~" + strings.ReplaceAll(tail, "-", ".")
	}
	return v
}

// describe runs the programs to print their manual pages, completion and configuration, which come from their own
// tables. The programs must run on this machine, whatever the target architecture.
func (o *options) describe(stage string) error {
	bin := stage
	if o.arch != runtime.GOARCH {
		var err error
		if bin, err = os.MkdirTemp("", "rebound-packaging-"); err != nil {
			return err
		}
		defer os.RemoveAll(bin)
		for _, p := range programs {
			if err := o.build(p, filepath.Join(bin, p), runtime.GOARCH); err != nil {
				return err
			}
		}
	}
	pages := map[string][]string{
		"config.toml":            {"rebound-responder", "config"},
		"rebound-responder.8.gz": {"rebound-responder", "manual"},
		"rebound-config.5.gz":    {"rebound-responder", "manual", "config"},
		"rebound-bench.1.gz":     {"rebound-bench", "manual"},
		"rebound-watch.1.gz":     {"rebound-watch", "manual"},
		"rebound-watch.5.gz":     {"rebound-watch", "manual", "config"},
		"watch.toml":             {"rebound-watch", "config"},
		"rebound-simnic.1.gz":    {"rebound-simnic", "manual"},
	}
	for _, p := range programs {
		pages[p+".bash"] = []string{p, "completion", "bash"}
		pages["_"+p] = []string{p, "completion", "zsh"}
		pages[p+".fish"] = []string{p, "completion", "fish"}
	}
	for file, of := range pages {
		cmd := exec.Command(filepath.Join(bin, of[0]), of[1:]...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(of, " "), err)
		}
		if strings.HasSuffix(file, ".gz") {
			out = compressed(out)
		}
		if err := os.WriteFile(filepath.Join(stage, file), out, 0o644); err != nil {
			return err
		}
	}
	if !o.discover {
		return nil
	}
	// committed: see TestManual there
	page, err := os.ReadFile(filepath.Join(o.root, "fleet", "discovery", discover+".1"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stage, discover+".1.gz"), compressed(page), 0o644)
}

func compressed(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	w.Write(text)
	w.Close()
	return b.Bytes()
}
