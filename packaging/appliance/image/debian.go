package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// suite is the Debian release that kernel and boot loader come from, whatever release this host runs.
const suite = "trixie"

const keys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debian is apt with a separate state: it changes nothing of this host, and needs no root.
type debian struct {
	dir  string
	args []string
}

// pkg is a downloaded package.
type pkg struct{ name, version, arch, file string }

func (p pkg) String() string { return p.name + " " + p.version }

// errCannot means that this host cannot fetch Debian packages. The exit status is 3 then, and tests are skipped.
var errCannot = errors.New("this host cannot fetch Debian packages")

func openDebian(dir string) (*debian, error) {
	for _, name := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w: %w", errCannot, err)
		}
	}
	if _, err := os.Stat(keys); err != nil {
		return nil, fmt.Errorf("%w: %w (install debian-archive-keyring)", errCannot, err)
	}
	mirror, err := findMirror()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCannot, err)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "packages"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := filepath.Join(dir, "sources.list")
	text := fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main\n", keys, mirror, suite)
	if err := os.WriteFile(sources, []byte(text), 0o644); err != nil {
		return nil, err
	}
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	user, err := exec.Command("id", "-un").Output()
	if err != nil {
		return nil, err
	}
	d := &debian{dir: dir}
	for _, o := range []string{"APT::Architecture=amd64", "Dir::Etc::sourcelist=" + sources,
		"Dir::Etc::sourceparts=/dev/null", "Dir::State=" + dir,
		"Dir::State::lists=" + filepath.Join(dir, "lists"), "Dir::State::status=" + status,
		"Dir::Cache=" + filepath.Join(dir, "cache"),
		"APT::Sandbox::User=" + strings.TrimSpace(string(user)), "Acquire::Retries=3"} {
		d.args = append(d.args, "-o", o)
	}
	if _, err = d.run("apt-get", "update"); err != nil {
		return nil, fmt.Errorf("%w: %w", errCannot, err)
	}
	return d, nil
}

// findMirror returns the Debian mirror that apt on this host is configured with.
func findMirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(ORIGIN) $(RELEASE) $(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Debian" && !strings.Contains(f[1], "-") {
			return f[2], nil
		}
	}
	return "", fmt.Errorf("apt on this host has no Debian mirror (configure one, and run apt-get update)")
}

func (d *debian) run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, append(append([]string{"-q"}, d.args...), args...)...)
	cmd.Dir = filepath.Join(d.dir, "packages")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// fetch downloads the suite's current version of a package, unless the cache has it.
func (d *debian) fetch(name string) (p pkg, err error) {
	out, err := d.run("apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return p, err
	}
	p.name = name
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Version":
			p.version = value
		case "Architecture":
			p.arch = value
		}
	}
	p.file = filepath.Join(d.dir, "packages", fmt.Sprintf("%s_%s_%s.deb", name,
		strings.ReplaceAll(p.version, ":", "%3a"), p.arch))
	if _, err := os.Stat(p.file); err == nil {
		return p, nil
	}
	fmt.Fprintf(os.Stderr, "fetching %s from Debian %s\n", p, suite)
	_, err = d.run("apt-get", "download", name)
	return p, err
}

// kernel fetches the package that linux-image-amd64 currently depends on.
func (d *debian) kernel() (p pkg, err error) {
	out, err := d.run("apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return d.fetch("linux-image-" + name)
		}
	}
	return p, fmt.Errorf("linux-image-amd64 of Debian %s names no kernel:\n%s", suite, out)
}

// walk calls visit for each regular file.
func (p pkg) walk(visit func(name string, body io.Reader) error) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", p.file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := tar.NewReader(out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err == nil && h.Typeflag == tar.TypeReg {
			err = visit(path.Clean("/"+h.Name), r)
		}
		if err != nil {
			out.Close()
			cmd.Wait()
			return fmt.Errorf("%s: %w", p.file, err)
		}
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %s: %w", p.file, err)
	}
	return nil
}

// read returns the named files.
func (p pkg) read(names ...string) ([][]byte, error) {
	all := make([][]byte, len(names))
	err := p.walk(func(name string, body io.Reader) (err error) {
		for i, n := range names {
			if n == name {
				all[i], err = io.ReadAll(body)
			}
		}
		return err
	})
	for i, b := range all {
		if err == nil && b == nil {
			err = fmt.Errorf("%s has no %s", p, names[i])
		}
	}
	return all, err
}
