package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// Two builds of one commit are the same bytes: in folders of other names, at another time, in another time zone and under another
// umask, the second with nothing of the first in its cache.
func TestReproducible(t *testing.T) {
	first := packaged(t)
	second := options{root: filepath.Join(shared, "elsewhere", "and", "deeper", "clone"), out: t.TempDir(), arch: first.arch,
		env: []string{"GOCACHE=" + filepath.Join(shared, "cache"), "TZ=Asia/Tokyo", "HOME=" + os.Getenv("HOME"), "LC_ALL=C"}}
	if testing.Short() {
		second.env = second.env[1:]
	}
	defer syscall.Umask(syscall.Umask(0o027))
	if err := clone(second.root); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // for what would stamp the time of making, in whole seconds
	if _, err := second.make(); err != nil {
		t.Fatal(err)
	}
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
	if files < 15 {
		t.Errorf("%d files were compared: want the package, three programs, their pages and lists", files)
	}
}

// The SBOM names what is linked, at its version and with its checksum, and nothing that is not.
func TestSBOM(t *testing.T) {
	o := packaged(t)
	for program, c := range map[string]struct{ has, hasNot []string }{
		"rebound-responder": {[]string{"std", "github.com/cilium/ebpf", "golang.org/x/sys", "github.com/BurntSushi/toml"}, []string{"github.com/goreleaser/nfpm/v2", "github.com/santhosh-tekuri/jsonschema/v6"}},
		"rebound-simnic":    {[]string{"std", "golang.org/x/sys"}, []string{"github.com/prometheus/client_golang"}},
	} {
		f, err := os.Open(filepath.Join(o.out, "stage-"+o.arch, program+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		there := map[string]cdx.Component{}
		for _, c := range *bom.Components {
			there[c.Name] = c
		}
		for _, n := range c.has {
			if m, ok := there[n]; !ok || m.Version == "" || n != "std" && (m.Hashes == nil || len((*m.Hashes)[0].Value) != 64) {
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

// A version before a release is below it for dpkg, and has no hyphen, behind which Debian's own revision would be looked for.
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
