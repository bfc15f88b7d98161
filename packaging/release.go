package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// architectures are a release's architectures.
var architectures = []string{"amd64", "arm64"}

// release builds every architecture and writes SHA256SUMS of the files at the top of out.
func (o *options) release() (made []string, err error) {
	for _, arch := range architectures {
		one := *o
		one.arch = arch
		files, err := one.make()
		if err != nil {
			return nil, err
		}
		o.out = one.out
		made = append(made, files...)
	}
	sums, err := o.sums()
	return append(made, sums), err
}

// sums writes the checksums of the files in out, in the format of sha256sum.
func (o *options) sums() (string, error) {
	entries, err := os.ReadDir(o.out) // in order of the names
	if err != nil {
		return "", err
	}
	to := filepath.Join(o.out, "SHA256SUMS")
	var b strings.Builder
	for _, e := range entries {
		if e.IsDir() || e.Name() == filepath.Base(to) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(o.out, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return to, os.WriteFile(to, []byte(b.String()), 0o644)
}

// entry is a file of an archive: its path in it and its mode.
type entry struct {
	from, to string
	mode     int64
}

// tar writes programs, configuration, manual pages, completion, SBOMs and licence into one folder, laid out as below
// /usr/local.
func (o *options) tar(stage string, s stamp) (string, error) {
	top := "rebound-" + s.debian() + "-linux-" + o.arch
	files := []entry{{filepath.Join(o.root, "LICENSE"), "LICENSE", 0o644}}
	if o.discover {
		files = append(files, entry{discover, "bin/" + discover, 0o755},
			entry{discover + ".cdx.json", "share/doc/rebound/sbom/" + discover + ".cdx.json", 0o644})
	}
	for _, p := range programs {
		files = append(files, entry{p, "bin/" + p, 0o755},
			entry{p + ".cdx.json", "share/doc/rebound/sbom/" + p + ".cdx.json", 0o644},
			entry{p + ".bash", "share/bash-completion/completions/" + p, 0o644},
			entry{"_" + p, "share/zsh/site-functions/_" + p, 0o644},
			entry{p + ".fish", "share/fish/vendor_completions.d/" + p + ".fish", 0o644})
	}
	for _, c := range []string{"config.toml", "watch.toml"} {
		files = append(files, entry{c, "etc/rebound/" + c, 0o644})
	}
	pages, err := filepath.Glob(filepath.Join(stage, "*.gz"))
	if err != nil {
		return "", err
	}
	for _, p := range pages {
		section := strings.TrimPrefix(filepath.Ext(strings.TrimSuffix(p, ".gz")), ".")
		files = append(files, entry{p, "share/man/man" + section + "/" + filepath.Base(p), 0o644})
	}
	for i := range files {
		files[i].to = top + "/" + files[i].to
	}
	content, err := archive(stage, files, s)
	if err != nil {
		return "", err
	}
	var z bytes.Buffer
	w, _ := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if _, err := w.Write(content); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	to := filepath.Join(o.out, top+".tar.gz")
	return to, os.WriteFile(to, z.Bytes(), 0o644)
}

// archive returns a tar of files, whose paths may be relative to stage, sorted, with their folders and the time of the
// commit.
func archive(stage string, files []entry, s stamp) ([]byte, error) {
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.to, b.to) })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	header := func(name string, mode int64, size int, kind byte) error {
		return w.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: int64(size), ModTime: s.time,
			Format: tar.FormatPAX})
	}
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.to {
			if dir := f.to[:i+1]; c == '/' && !made[dir] {
				made[dir] = true
				if err := header(dir, 0o755, 0, tar.TypeDir); err != nil {
					return nil, err
				}
			}
		}
		from := f.from
		if !filepath.IsAbs(from) {
			from = filepath.Join(stage, from)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := header(f.to, f.mode, len(content), tar.TypeReg); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// image writes the image that Containerfile describes as an archive for docker load and podman load.
func (o *options) image(stage string, s stamp) (string, error) {
	text, err := o.list("Containerfile")
	if err != nil {
		return "", err
	}
	files, entry, err := readContainerfile(text)
	if err != nil {
		return "", err
	}
	content, err := archive(stage, files, s)
	if err != nil {
		return "", err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)),
			nil
	})
	if err != nil {
		return "", err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return "", err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return "", err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", o.arch, v1.Time{Time: s.time}
	config.Config = v1.Config{Entrypoint: entry, Env: []string{"PATH=/usr/bin"}}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag("rebound:latest")
	if err != nil {
		return "", err
	}
	to := filepath.Join(o.out, "rebound-"+s.debian()+"-image-"+o.arch+".tar")
	return to, tarball.WriteToFile(to, tag, img)
}

// readContainerfile returns the files that a Containerfile copies and its entry point. It accepts no other
// instructions, so that the archive is the same image as the one that is built from the file.
func readContainerfile(text string) (files []entry, entrypoint []string, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#") || strings.TrimSpace(line) == "FROM scratch":
		case f[0] == "COPY" && len(f) == 3:
			mode := int64(0o644)
			if path.Dir(f[2]) == "/usr/bin" {
				mode = 0o755
			}
			files = append(files, entry{f[1], strings.TrimPrefix(f[2], "/"), mode})
		case f[0] == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "ENTRYPOINT")),
				&entrypoint); err != nil {
				return nil, nil, fmt.Errorf("Containerfile: %s: %w", strings.TrimSpace(line), err)
			}
		default:
			return nil, nil, fmt.Errorf("Containerfile: unknown instruction %q", strings.TrimSpace(line))
		}
	}
	if entrypoint == nil {
		return nil, nil, errors.New("Containerfile: no ENTRYPOINT")
	}
	return files, entrypoint, nil
}
