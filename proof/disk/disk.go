// Package disk gives tests a disk that is full, or will be after some more pages.
package disk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/needs"
)

// Ballast is the name of the file that takes the space.
const Ballast = "ballast"

// Small returns the folder of a file system of 4 MiB that has some pages of 4 KiB free. It fails the test if a file in it is open at the end.
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

// Fill leaves some pages free of the ones that are.
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
