package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes a program's components, in CycloneDX, from the modules that the linker recorded in it: those that
// are linked, with version and checksum. It omits serial number and build time, so that a program always has the same
// SBOM.
func writeSBOM(program, to string) error {
	b, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	name := filepath.Base(program)
	main := module(&b.Main)
	main.Type, main.Name = cdx.ComponentTypeApplication, name
	main.BOMRef += "#cmd/" + name
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	props := []cdx.Property{{Name: "go:version", Value: b.GoVersion}}
	for _, s := range b.Settings {
		if s.Value != "" {
			props = append(props, cdx.Property{Name: "go:build:" + s.Key, Value: s.Value})
		}
	}
	main.Properties = &props

	std := module(&debug.Module{Path: "std", Version: b.GoVersion})
	components, needs := []cdx.Component{std}, []string{std.BOMRef}
	for _, d := range b.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		c := module(d)
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}

	f, err := os.Create(to)
	if err != nil {
		return err
	}
	err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	if second := f.Close(); err == nil {
		err = second
	}
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// module returns a Go module as a component. Its checksum is that of go.sum, a SHA-256 over the hashes of its files.
func module(m *debug.Module) cdx.Component {
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == 32 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}
