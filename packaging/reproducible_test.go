package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	checked "github.com/google/go-containerregistry/pkg/v1/validate"
)

// Two builds of one commit are the same bytes: in folders of other names, at another time, in another time zone and
// under another umask. The smallest program is also compiled with nothing of the first build in its cache: what it has
// of this module and of the standard library is compiled in another folder.
func TestReproducible(t *testing.T) {
	first := packaged(t)
	second := options{root: filepath.Join(shared, "elsewhere", "and", "deeper", "clone"), out: t.TempDir(),
		arch: first.arch, discover: true, discovery: discovery(), env: []string{"TZ=Asia/Tokyo", "LC_ALL=C"}}
	defer syscall.Umask(syscall.Umask(0o027))
	must(t, clone(second.root))
	time.Sleep(time.Second) // build times would differ, because they have a resolution of one second
	value(second.make())(t)
	files := 0
	err := filepath.WalkDir(first.out, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		name, err := filepath.Rel(first.out, path)
		if err != nil {
			return err
		}
		a, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(second.out, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes here, %d there, and they differ", name, len(a), len(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if tars, err := filepath.Glob(filepath.Join(first.out, "rebound-*.tar*")); err != nil || len(tars) != 2 {
		t.Errorf("%q, %v: want the tar file and the image", tars, err)
	}
	if files < 15 {
		t.Errorf("%d files were compared: want the package, four programs, their pages and lists", files)
	}
	if testing.Short() {
		return
	}
	const program = "rebound-simnic"
	empty := second
	empty.env = append(empty.env, "GOCACHE="+filepath.Join(shared, "cache"))
	must(t, empty.build(program, filepath.Join(shared, program), first.arch))
	if !bytes.Equal(value(os.ReadFile(filepath.Join(shared, program)))(t),
		value(os.ReadFile(filepath.Join(first.out, "stage-"+first.arch, program)))(t)) {
		t.Errorf("%s differs when nothing of it was compiled before", program)
	}
}

// The SBOM lists exactly the modules that are linked, with version and checksum.
func TestSBOM(t *testing.T) {
	o := packaged(t)
	discovers := []string{"std"}
	if *whole {
		discovers = append(discovers, "github.com/prometheus/prometheus", "k8s.io/client-go")
	}
	for program, c := range map[string]struct{ has, hasNot []string }{
		"rebound-discover":  {discovers, []string{"github.com/cilium/ebpf"}},
		"rebound-responder": {[]string{"std", "github.com/cilium/ebpf", "golang.org/x/sys", "github.com/BurntSushi/toml"}, []string{"github.com/goreleaser/nfpm/v2", "github.com/santhosh-tekuri/jsonschema/v6"}},
		"rebound-simnic":    {[]string{"std", "golang.org/x/sys"}, []string{"github.com/prometheus/client_golang"}},
	} {
		f := value(os.Open(filepath.Join(o.out, "stage-"+o.arch, program+".cdx.json")))(t)
		defer f.Close()
		var bom cdx.BOM
		must(t, cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom))
		there := map[string]cdx.Component{}
		for _, c := range *bom.Components {
			there[c.Name] = c
		}
		for _, n := range c.has {
			if m, ok := there[n]; !ok || m.Version == "" || n != "std" &&
				(m.Hashes == nil || len((*m.Hashes)[0].Value) != 64) {
				t.Errorf("%s: %s is %+v", program, n, m)
			}
		}
		for _, n := range c.hasNot {
			if _, ok := there[n]; ok {
				t.Errorf("%s: has %s, which is not linked", program, n)
			}
		}
		if m := bom.Metadata.Component; m.Name != program || m.Version == "" || m.Version == "(devel)" {
			t.Errorf("%s: is %s %s", program, m.Name, m.Version)
		}
	}
}

// Without -discover, no list names rebound-discover, and each is otherwise the same.
func TestListsWithoutDiscover(t *testing.T) {
	for _, name := range []string{"nfpm.yaml", "Containerfile"} {
		with, without := options{root: "..", discover: true}, options{root: ".."}
		all, less := value(with.list(name))(t), value(without.list(name))(t)
		if !strings.Contains(all, discover) || strings.Contains(less, discover) ||
			!strings.Contains(less, prefix+"watch") {
			t.Errorf("%s: with %q: %t; without it: %t", name, discover, strings.Contains(all, discover),
				strings.Contains(less, discover))
		}
	}
}

// dpkg sorts a pre-release before its release, and its version has no hyphen, which would start Debian's own revision.
func TestDebianVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3":                               "1.2.3",
		"v1.2.3-rc1":                           "1.2.3~rc1",
		"v0.0.0-20260102030405-0123456789ab":   "0.0.0~20260102030405.0123456789ab",
		"v1.2.4-0.20260102030405-0123456789ab": "1.2.4~0.20260102030405.0123456789ab",
		"v1.2.3+dirty":                         "1.2.3+dirty",
	} {
		if got := (stamp{version: version}).debian(); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

// The tar file contains everything that its users need, according to sha256sum and tar, and its programs equal the
// package's.
func TestTar(t *testing.T) {
	o := packaged(t)
	sums := value(o.sums())(t)
	defer os.Remove(sums) // TestReproducible compares the folder
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = o.out
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	if out := run("sha256sum", "-c", "SHA256SUMS"); strings.Count(out, ": OK") < 3 {
		t.Errorf("sha256sum -c: %s", out)
	}
	tars, err := filepath.Glob(filepath.Join(o.out, "rebound-*-linux-"+o.arch+".tar.gz"))
	if err != nil || len(tars) != 1 {
		t.Fatalf("%q, %v", tars, err)
	}
	to := t.TempDir()
	run("tar", "-xf", tars[0], "--strip-components=1", "-C", to)
	for _, f := range []string{"bin/rebound-simnic", "share/doc/rebound/sbom/rebound-discover.cdx.json", "LICENSE",
		"etc/rebound/config.toml", "etc/rebound/watch.toml", "share/man/man8/rebound-responder.8.gz",
		"share/man/man1/rebound-bench.1.gz", "share/man/man1/rebound-discover.1.gz",
		"share/man/man5/rebound-config.5.gz", "share/doc/rebound/sbom/rebound-bench.cdx.json",
		"share/zsh/site-functions/_rebound-bench", "share/fish/vendor_completions.d/rebound-bench.fish",
		"share/bash-completion/completions/rebound-bench"} {
		if info, err := os.Stat(filepath.Join(to, f)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, c := range [][]string{{"rebound-responder", "version"}, {"rebound-bench", "version"},
		{"rebound-watch", "version"}, {"rebound-discover", "-version"}} {
		out := run(filepath.Join(to, "bin", c[0]), c[1])
		if !strings.HasPrefix(out, c[0]+" v0.") || strings.Contains(out, "stand-in") != (c[0] == discover && !*whole) {
			t.Errorf("%s: %s", c, out)
		}
	}
}

// The image's archive has the Containerfile's files and entry point. TestContainer runs them.
func TestImage(t *testing.T) {
	o := packaged(t)
	images, err := filepath.Glob(filepath.Join(o.out, "rebound-*-image-"+o.arch+".tar"))
	if err != nil || len(images) != 1 {
		t.Fatalf("%q, %v", images, err)
	}
	img := value(tarball.ImageFromPath(images[0], nil))(t)
	must(t, checked.Image(img))
	config := value(img.ConfigFile())(t)
	if config.Architecture != o.arch || !slices.Equal(config.Config.Entrypoint,
		[]string{"/usr/bin/rebound-responder", "-config", "/etc/rebound/config.toml"}) {
		t.Errorf("%s, %q", config.Architecture, config.Config.Entrypoint)
	}
	var names []string
	files := tar.NewReader(mutate.Extract(img))
	for {
		h, err := files.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, fmt.Sprintf("%s %o", h.Name, h.Mode))
		}
	}
	if want := []string{"etc/rebound/config.toml 644", "usr/bin/rebound-bench 755", "usr/bin/rebound-discover 755",
		"usr/bin/rebound-responder 755", "usr/bin/rebound-watch 755"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}
