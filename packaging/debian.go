package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
)

// debian writes the package described by nfpm.yaml, and returns its name. Every time in it is the commit's.
func (o *options) debian(stage string, s stamp) (name string, err error) {
	here := filepath.Join(o.root, "packaging")
	values := map[string]string{"STAGE": stage, "HERE": here, "ROOT": o.root, "ARCH": o.arch, "VERSION": s.debian()}
	text, err := o.list("nfpm.yaml")
	if err != nil {
		return "", err
	}
	c, err := nfpm.Parse(strings.NewReader(os.Expand(text, func(k string) string { return values[k] })))
	if err != nil {
		return "", fmt.Errorf("nfpm.yaml: %w", err)
	}
	info, err := c.Get("deb")
	if err != nil {
		return "", err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = s.time
	for _, f := range info.Contents {
		if f.FileInfo != nil {
			f.FileInfo.MTime = s.time
		}
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return "", fmt.Errorf("nfpm.yaml: %w", err)
	}
	deb, err := nfpm.Get("deb")
	if err != nil {
		return "", err
	}
	name = filepath.Join(o.out, deb.ConventionalFileName(info))
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	err = deb.Package(info, f)
	if second := f.Close(); err == nil {
		err = second
	}
	if err != nil {
		os.Remove(name)
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return name, nil
}
