package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	pauseImage = "docker.io/library/pause:cluster"
	ourImage   = "docker.io/library/rebound"
)

// makeImages builds the images of the cluster into a folder: pause.tar, and rebound.tar of this working tree.
func makeImages(dir string) error {
	program := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./pause: %w\n%s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := writeImage(filepath.Join(dir, "pause.tar"), pauseImage, "/pause", b); err != nil {
		return err
	}
	// A program has its version from the commit, which the go command does not read in a worktree: so from a clone,
	// with what is not committed yet.
	clone := filepath.Join(dir, "clone")
	script := `git clone -q --depth 1 --no-local .. "$1"; git -C .. diff --binary HEAD | git -C "$1" apply --allow-empty
(cd ..; git ls-files -z --others --exclude-standard | tar -c --null -T -) | tar -x -C "$1"
cd "$1/packaging"; go run . -image -discover -out "$2"; mv "$2"/rebound-*-image-*.tar "$3"; rm -rf "$1" "$2"`
	if out, err := exec.Command("sh", "-euc", script, "sh", clone, filepath.Join(dir, "out"),
		filepath.Join(dir, "rebound.tar")).CombinedOutput(); err != nil {
		return fmt.Errorf("the image of this repository: %w\n%s", err, out)
	}
	return nil
}

// writeImage writes an image with one file as an archive for docker load.
func writeImage(to, name, path string, program []byte) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := add(w, strings.TrimPrefix(path, "/"), 0o755, program); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{path}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{
			fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	w = tar.NewWriter(f)
	for _, e := range []struct {
		name    string
		content []byte
	}{{"config.json", config}, {"layer.tar", layer.Bytes()}, {"manifest.json", manifest}} {
		if err := add(w, e.name, 0o644, e.content); err != nil {
			return err
		}
	}
	return w.Close()
}

func add(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode,
		Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
