package nictest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/needs"
)

// inMounts marks a test binary that runs in a private mount namespace.
const inMounts = "REBOUND_TEST_MOUNTS"

// WithBPFFS calls run, which is a package's m.Run in TestMain, in a process with a private BPF file system at
// /sys/fs/bpf, so that the tests' pins do not affect this machine and disappear with the process. Without root, run is
// called directly. It returns the exit code.
func WithBPFFS(run func() int) int {
	if os.Getuid() != 0 {
		return run()
	}
	if os.Getenv(inMounts) == "" {
		c := exec.Command("/proc/self/exe", os.Args[1:]...)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		c.Env = append(os.Environ(), inMounts+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err := c.Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			return max(exit.ExitCode(), 1)
		case err != nil: // such namespaces are not available here
			return run()
		}
		return 0
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		fmt.Fprintln(os.Stderr, "mount of a BPF file system:", err)
	}
	return run()
}

// NeedBPFFS skips a test if there is no BPF file system.
func NeedBPFFS(t *testing.T) {
	t.Helper()
	needs.Root(t, "a BPF file system")
	var s unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &s); err != nil || s.Type != unix.BPF_FS_MAGIC {
		t.Skip("needs a BPF file system at /sys/fs/bpf")
	}
}
