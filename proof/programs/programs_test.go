package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

func TestPrograms(t *testing.T) {
	path := Path(t, "simnic")
	if out, err := exec.Command(path, "-h").CombinedOutput(); err != nil {
		t.Errorf("%s -h: %v\n%s", path, err, out)
	}
	before := must.Get(os.Stat(path))(t)
	must.Get(build("simnic"))(t)
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("linked again although nothing changed: %v", err)
	}
	dir := ForOthers(t, "simnic")
	for _, file := range []string{dir, filepath.Join(dir, "simnic")} {
		if i, err := os.Stat(file); err != nil || i.Mode().Perm()&0o005 != 0o005 {
			t.Errorf("%s: %v %v, want it readable and executable by every user", file, i.Mode(), err)
		}
	}
}

func TestBuildFails(t *testing.T) {
	if _, err := build("no-such-program"); err == nil {
		t.Error("built a program that does not exist")
	}
}
