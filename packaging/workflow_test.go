package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// left are the steps of the workflow that this test does not run, with what stands for them.
var left = map[string]string{
	"actions/checkout@v4":                "a clone",
	"actions/setup-go@v5":                "the go command that runs this test",
	"actions/attest-build-provenance@v2": "its file is looked for below",
	"make check":                         "CI runs all of it, and more",
}

// The steps of the release's workflow, in a clone with a tag, make and publish the files that README and install.md
// name: with the tag's version, checksums that fit, and an SBOM of each program. gh is a program that writes down its
// arguments.
func TestWorkflow(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: a release is a tag")
	}
	const tag = "v1.2.3"
	dir := filepath.Join(t.TempDir(), "clone")
	must(t, clone(dir))
	value(git(dir, "tag", tag))(t)
	var w struct {
		Jobs map[string]struct {
			Steps []struct {
				Name, Uses, Run string
				Env, With       map[string]any
			}
		}
	}
	must(t, yaml.Unmarshal(value(os.ReadFile("../.github/workflows/release.yml"))(t), &w))
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "gh"), []byte("#!/bin/sh\nfor a; do echo \"$a\"; done >'"+bin+
		"/published'\n"), 0o755))
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "GITHUB_REF_NAME="+tag,
		"DISCOVERY="+discovery())
	ran, needed := 0, []string{}
	for _, s := range w.Jobs["release"].Steps {
		for _, with := range []string{"subject-checksums", "go-version-file"} {
			if file, ok := s.With[with].(string); ok {
				needed = append(needed, file)
			}
		}
		if left[s.Uses+s.Run] != "" {
			continue
		} else if s.Uses != "" {
			t.Errorf("step %s is neither run nor listed", s.Uses)
			continue
		}
		cmd := exec.Command("bash", "-ec", s.Run) // as GitHub's runner does
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("step %q: %v\n%s", s.Name, err, out)
		}
		ran++
	}
	if ran != 3 {
		t.Errorf("%d steps ran, want make release, scripts/release-files and gh", ran)
	}
	for _, f := range needed {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
	out := filepath.Join(dir, "out/release")
	published := strings.Fields(string(value(os.ReadFile(filepath.Join(bin, "published")))(t)))
	if want := []string{"release", "create", tag, "--verify-tag", "--generate-notes"}; len(published) < 5 ||
		!slices.Equal(published[:5], want) {
		t.Fatalf("gh %q, want %q", published, want)
	}
	for _, f := range published[5:] {
		if _, err := os.Stat(filepath.Join(out, f)); err != nil {
			t.Error(err)
		}
	}
	want := []string{"SHA256SUMS"}
	for _, arch := range architectures {
		want = append(want, "rebound_1.2.3_"+arch+".deb", "rebound_"+arch+".deb", "rebound-1.2.3-linux-"+arch+".tar.gz",
			"rebound-linux-"+arch+".tar.gz", "rebound-1.2.3-image-"+arch+".tar")
		for _, p := range append(slices.Clone(programs), discover) {
			want = append(want, p+"-"+arch+".cdx.json")
		}
	}
	link := regexp.MustCompile(`releases/latest/download/([\w.-]+)`)
	for _, page := range []string{"../README.md", "../docs/use/install.md"} {
		all := link.FindAllStringSubmatch(string(value(os.ReadFile(page))(t)), -1)
		if len(all) < 2 {
			t.Errorf("%s has %d links to a release", page, len(all))
		}
		for _, m := range all {
			want = append(want, m[1])
		}
	}
	for _, f := range want {
		if !slices.Contains(published, f) {
			t.Errorf("%s is not published", f)
		}
	}
	sh := exec.Command("sh", "-ec",
		fmt.Sprintf("sha256sum -c SHA256SUMS && tar -xzOf rebound-linux-%[1]s.tar.gz rebound-1.2.3-linux-%[1]s/bin/rebound-bench >'%[2]s/bench' && chmod +x '%[2]s/bench' && '%[2]s/bench' version", architectures[0], bin))
	sh.Dir = out
	text, err := sh.CombinedOutput()
	if err != nil || strings.Count(string(text), ": OK") != len(published)-6 ||
		!strings.Contains(string(text), "\nrebound-bench "+tag) {
		t.Errorf("%v\n%s", err, text)
	}
	t.Logf("%s", text)
}
