// Package disk provides tests with a disk that is full, or has a few free pages.
package disk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/needs"
)

// Ballast is the name of the file that occupies the space.
const Ballast = "ballast"

// Small returns the folder of a file system of 4 MiB with the given number of free pages of 4 KiB. It fails the test if
// a file in it is still open at the end.
func Small(t testing.TB, free int) string {
	t.Helper()
	needs.Root(t, "mounting a file system")
	dir := t.TempDir()
	if err := unix.Mount("rebound-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("a file of the small disk is open: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	Fill(t, dir, free)
	return dir
}

// Fill leaves the given number of pages free.
func Fill(t testing.TB, dir string, free int) {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, Ballast), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, (int(s.Bfree)-free)*int(s.Bsize))); err != nil {
		t.Fatal(err)
	}
}
