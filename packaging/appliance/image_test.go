package appliance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// ukis returns the names in EFI/Linux.
func ukis(t *testing.T, disk string) []string { return names(t, disk, "/EFI/Linux") }

// renameUKI adds a boot counter to the name of the only file in EFI/Linux.
func renameUKI(t *testing.T, disk, counter string) {
	t.Helper()
	all := ukis(t, disk)
	if len(all) != 1 {
		t.Fatalf("EFI/Linux has %v", all)
	}
	mtool(t, disk, "mren", "::/EFI/Linux/"+all[0], "::/EFI/Linux/"+strings.TrimSuffix(all[0], ".efi")+counter+".efi")
}

// The image is small, its file system is clean, and a second file fits for an upgrade. The SBOM names the kernel.
func TestImage(t *testing.T) {
	needs.Long(t)
	dir := image(t)
	img := must.Get(os.Stat(dir + "/rebound.img"))(t)
	efi := must.Get(os.Stat(dir + "/rebound.efi"))(t)
	if img.Size() > 64e6 {
		t.Errorf("rebound.img has %d bytes, more than 64 MB", img.Size())
	}
	fsck(t, dir+"/rebound.img")
	fsck(t, disk(t, dir+"/rebound.img", map[string]string{"/EFI/Linux/second+3.efi": string(
		must.Get(os.ReadFile(dir + "/rebound.efi"))(t))}))
	t.Logf("rebound.img %d bytes, rebound.efi %d bytes", img.Size(), efi.Size())

	var bom struct {
		Components []struct {
			Name, Version string
			Hashes        []struct{ Content string }
		}
	}
	must.OK(t, json.Unmarshal(must.Get(os.ReadFile(dir+"/rebound.cdx.json"))(t), &bom))
	kernels, modules := 0, 0
	for _, c := range bom.Components {
		if strings.HasPrefix(c.Name, "linux-image-") && strings.Count(c.Version, ".") >= 2 && len(c.Hashes) == 1 {
			kernels++
		}
		if strings.Contains(c.Name, "/") && c.Version != "" {
			modules++
		}
	}
	if kernels != 1 || modules < 20 {
		t.Errorf("the SBOM names %d kernels and %d modules", kernels, modules)
	}
}

// Two builds of one commit are the same: the second one in another folder and time zone, by an ordinary user with
// nothing compiled before.
func TestReproducible(t *testing.T) {
	needs.Long(t)
	if out := must.Get(exec.Command("git", "status", "--porcelain").Output())(t); len(out) > 0 {
		t.Skip("the working tree has changes, and a clone would not")
	}
	first := image(t)
	folder := must.Get(os.MkdirTemp("", "appliance"))(t) // t.TempDir's parent is this user's alone
	defer os.RemoveAll(folder)
	must.OK(t, os.Chmod(folder, 0o755))
	must.OK(t, os.Mkdir(folder+"/tmp", 0o755))
	clone, second, cache := folder+"/clone", folder+"/image", folder+"/packages"
	command(t, "git", "clone", "-q", root, clone)
	must.OK(t, os.Mkdir(cache, 0o755))
	for _, part := range []string{"lists", "packages"} { // so that it fetches nothing again
		command(t, "cp", "-r", root+"/.cache/appliance/"+part, cache)
	}
	cmd := ordinary(t, folder, "go", "run", "./image", "-out", second, "-cache", cache)
	cmd.Dir = clone + "/packaging/appliance"
	cmd.Env = append(cmd.Environ(), "TZ=Asia/Tokyo")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"rebound.img", "rebound.efi", "rebound.cdx.json", "rebound.toml", "rebound.ipxe"} {
		if a, b := must.Get(os.ReadFile(filepath.Join(first, name)))(t),
			must.Get(os.ReadFile(filepath.Join(second, name)))(t); !bytes.Equal(a, b) {
			t.Errorf("%s differs: %d and %d bytes", name, len(a), len(b))
		}
	}
}

// ordinary returns a command that runs as the user nobody if this process is root's. That user owns folder then, and
// can read the module cache.
func ordinary(t *testing.T, folder string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		return exec.Command(args[0], args[1:]...)
	}
	needs.Programs(t, "unshare", "setpriv")
	modules := filepath.Join(folder, "modules")
	must.OK(t, os.Mkdir(modules, 0o755))
	command(t, "chown", "-R", "65534:65534", folder)
	// The module cache is in a home folder that others cannot enter.
	script := fmt.Sprintf("mount --bind %q %q && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
		goRun(t, ".", "env", "GOMODCACHE"), modules)
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+folder, "GOCACHE="+folder+"/go-build", "GOMODCACHE="+modules, "GOPROXY=off",
		"GOFLAGS=-trimpath", "TMPDIR="+folder+"/tmp")
	return cmd
}
