package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errCannot means that this host cannot run the lab: no apt, no mirror, or another architecture. Tests skip with its
// text.
var errCannot = errors.New("this host cannot run the lab")

//go:embed setup.sh
var setupScript []byte

// Kit has the programs and files that setup installed.
type Kit struct {
	Dir     string // the cache folder
	Version string // of QEMU and kernel, for logs
	QEMU    string // starts it with its own libraries
	Kernel  string
	IPXE    string      // iPXE as a kernel image
	Testpmd string      // DPDK's testpmd for this host, with its own libraries
	Used    func(Usage) // if not nil, called after each run
	Died    func(error) // if not nil, called after a run that failed with errBreakpoint; it need not return
	initrd  string
	modules string // an initramfs with the modules of Kernel, if it is not the kit's own
}

// setup downloads QEMU, kernel and guest root into the cache folder if they do not exist yet:
// $XDG_CACHE_HOME/rebound/lab, or .cache/lab at the module's root. This takes about half a minute the first time.
// Several processes may call it concurrently. It returns errCannot with the reason if the host lacks something.
func setup(ctx context.Context) (*Kit, error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: %v", errCannot, err)
	}
	lock, err := locked(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	k := &Kit{Dir: dir, QEMU: filepath.Join(dir, "qemu"), Kernel: filepath.Join(dir, "vmlinuz"),
		IPXE:    filepath.Join(dir, "ipxe.lkrn"),
		Testpmd: filepath.Join(dir, "testpmd"), initrd: filepath.Join(dir, "initrd")}
	sum := sha256.Sum256(setupScript)
	want, stamp := hex.EncodeToString(sum[:]), filepath.Join(dir, "stamp")
	if got, _ := os.ReadFile(stamp); string(got) != want {
		if err := k.bring(ctx); err != nil {
			return nil, err
		}
		if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
			return nil, err
		}
	}
	v, err := os.ReadFile(filepath.Join(dir, "version"))
	k.Version = strings.ReplaceAll(strings.TrimSpace(string(v)), "\n", ", ")
	return k, err
}

// locked holds a lock against other processes and other callers in this process, until the file is closed.
func locked(name string) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errCannot, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lab: lock %s: %w", lock.Name(), err)
	}
	return lock, nil
}

// runScript runs a script on the kit's folder. Exit code 3 becomes errCannot with the script's output.
func (k *Kit) runScript(ctx context.Context, what string, script []byte, args ...string) error {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-s", "--", k.Dir}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(script), &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3, errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s", errCannot, strings.TrimSpace(out.String()+" "+errText(err)))
	case err != nil:
		return fmt.Errorf("lab: %s: %w: %s", what, err, out.String())
	}
	return nil
}

func (k *Kit) bring(ctx context.Context) error {
	if err := k.runScript(ctx, "setup", setupScript); err != nil {
		return err
	}
	for file, tree := range map[string]string{k.initrd: "guest", k.layer(dpdk): dpdk + "-guest",
		k.layer(pyverbs): pyverbs + "-guest"} {
		if err := writeTree(file, filepath.Join(k.Dir, tree)); err != nil {
			return err
		}
	}
	return nil
}

// Layers of the guest's root that a Machine can request.
const (
	dpdk    = "dpdk"    // testpmd and the drivers that the lab tests it with
	pyverbs = "pyverbs" // Python, the bindings of libibverbs, and rdma-core's own tests
)

func (k *Kit) layer(name string) string { return filepath.Join(k.Dir, "initrd-"+name) }

func writeTree(file, dir string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.tree(dir)
	return a.close()
}

func errText(err error) string {
	if errors.Is(err, exec.ErrNotFound) {
		return err.Error()
	}
	return ""
}

func cacheDir() (string, error) {
	if x := os.Getenv("XDG_CACHE_HOME"); x != "" {
		return filepath.Join(x, "rebound", "lab"), nil
	}
	root, err := moduleRoot()
	return filepath.Join(root, ".cache", "lab"), err
}

// moduleRoot is the folder with go.mod, above the current one.
func moduleRoot() (string, error) {
	d, err := os.Getwd()
	for err == nil {
		if _, e := os.Stat(filepath.Join(d, "go.mod")); e == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", errors.New("lab: no go.mod above the current folder")
		}
		d = filepath.Dir(d)
	}
	return "", err
}
