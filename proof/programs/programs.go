// Package programs builds the programs of cmd/ for tests.
package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/needs"
)

var built sync.Map // by name, func() (string, error)

// Path returns the program of cmd/ with this name. It is built once per test process, into out/programs, and linked
// again only if its sources have changed. A test that runs under the race detector gets a program that has it too: its
// exit code is 66 if it found a race.
func Path(t testing.TB, name string) string {
	t.Helper()
	needs.Tree(t)
	once, _ := built.LoadOrStore(name, sync.OnceValues(func() (string, error) { return build(name) }))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatalf("build cmd/%s: %v", name, err)
	}
	return path
}

// ForOthers returns a folder with copies of programs that every user may run. It is removed when the test ends.
func ForOthers(t testing.TB, names ...string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rebound-programs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range names {
		Path(t, name)
	}
	// A child process forked now by a parallel test would hold a file open for writing until it calls exec, and
	// starting ours would fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for _, name := range names {
		b, err := os.ReadFile(Path(t, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// build builds a program while no other test process does.
func build(name string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir, env, flags := filepath.Join(root, "out", "programs"), "CGO_ENABLED=0", []string{"build"}
	if Race {
		dir, env, flags = filepath.Join(dir, "race"), "CGO_ENABLED=1", append(flags, "-race")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", append(flags, "-o", path, "./cmd/"+name)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
}

// moduleRoot is the folder of go.mod. Tests run in their package's folder.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		} else if dir == filepath.Dir(dir) {
			return "", err
		}
	}
	return "", err
}
