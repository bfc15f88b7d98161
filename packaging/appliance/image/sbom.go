package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"os"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// components returns the image's SBOM, in CycloneDX: the Debian packages with the checksums of their files, and the Go
// modules that the linker recorded in the program.
func components(program string, v stamp, packages []pkg) ([]byte, error) {
	b, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	all := []cdx.Component{{BOMRef: "std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: b.GoVersion,
		PackageURL: "pkg:golang/std@" + b.GoVersion}}
	for _, p := range packages {
		body, err := os.ReadFile(p.file)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		purl := "pkg:deb/debian/" + p.name + "@" + p.version + "?arch=" + p.arch + "&distro=" + suite
		all = append(all, cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeOS, Name: p.name, Version: p.version,
			PackageURL: purl,
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}})
	}
	for _, d := range b.Deps {
		version := d.Version
		if d.Replace != nil && d.Replace.Version == "" {
			version = "v" + v.version // the product, which is this repository
		}
		purl := "pkg:golang/" + d.Path + "@" + version
		all = append(all, cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: d.Path, Version: version,
			PackageURL: purl})
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{BOMRef: "rebound-appliance", Type: cdx.ComponentTypeFirmware,
		Name: "rebound-appliance", Version: v.version, Licenses: &cdx.Licenses{
			{License: &cdx.License{ID: "Apache-2.0"}}}}}
	bom.Components = &all
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}
