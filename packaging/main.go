// Command packaging builds the distributions reproducibly: static programs, a Debian package of them with manual pages,
// shell completion, configuration and systemd units, a tar file for other distributions, a container image, and an SBOM
// for each program. It is a separate module, so that its requirements are not dependencies of the programs.
//
//	go -C packaging run . -out ../out/package
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

func main() {
	o := options{}
	flag.StringVar(&o.root, "root", "..", "the repository's `FOLDER`")
	flag.StringVar(&o.out, "out", "../out/package", "`FOLDER` for what is made")
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture to build for: amd64 or arm64")
	flag.BoolVar(&o.discover, "discover", false,
		"include rebound-discover, which compiles for minutes at first; a release has it")
	flag.StringVar(&o.discovery, "discovery", "fleet/discovery",
		"`FOLDER` of rebound-discover's sources in the repository")
	release := flag.Bool("release", false, "build everything for both architectures, and write SHA256SUMS")
	flag.BoolVar(&o.imageOnly, "image", false, "build the image's archive alone")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "packaging: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	build := o.make
	if *release {
		o.discover = true
		build = o.release
	}
	made, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
	for _, f := range made {
		fmt.Println(f)
	}
}

// options are the command line's options.
type options struct {
	root string // the repository
	out  string // a folder, made if it is not there
	arch string // GOARCH
	env  []string

	imageOnly bool
	discover  bool   // include rebound-discover
	discovery string // folder of rebound-discover's sources in the repository; empty for fleet/discovery
}

// prefix precedes the name of a program's folder in cmd in its installed name, because /usr/bin/bench would be too
// generic.
const prefix = "rebound-"

// programs are the installed programs of cmd; the others there are development tools.
var programs = []string{prefix + "responder", prefix + "bench", prefix + "watch", prefix + "simnic"}

// discover is installed too, with options.discover. It is a separate module with a committed manual page, and has no
// completion: services start it.
const discover = prefix + "discover"

// make returns the files that it made: the package, the tar file, the image's archive and its Containerfile, and the
// SBOMs.
func (o *options) make() (made []string, err error) {
	if o.arch != "amd64" && o.arch != "arm64" {
		return nil, fmt.Errorf("-arch %s: the programs run on amd64 and arm64", o.arch)
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	if o.root, err = filepath.Abs(o.root); err != nil {
		return nil, err
	}
	stage := filepath.Join(o.out, "stage-"+o.arch)
	if err := errors.Join(os.RemoveAll(stage), os.MkdirAll(stage, 0o755)); err != nil {
		return nil, err
	}
	for _, p := range programs {
		if err := o.build(p, filepath.Join(stage, p), o.arch); err != nil {
			return nil, err
		}
	}
	installed := slices.Clone(programs)
	if o.discover {
		installed = append(installed, discover)
		if err := o.buildDiscover(filepath.Join(stage, discover)); err != nil {
			return nil, err
		}
	}
	s, err := readStamp(filepath.Join(stage, prefix+"responder"))
	if err != nil {
		return nil, err
	}
	if err := o.describe(stage); err != nil {
		return nil, err
	}
	if o.imageOnly {
		image, err := o.image(stage, s)
		return []string{image}, err
	}
	for _, p := range installed {
		bom := filepath.Join(stage, p+".cdx.json")
		if err := writeSBOM(filepath.Join(stage, p), bom); err != nil {
			return nil, err
		}
		made = append(made, bom)
	}
	deb, err := o.debian(stage, s)
	if err != nil {
		return nil, err
	}
	text, err := o.list("Containerfile")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(stage, "Containerfile"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	tar, err := o.tar(stage, s)
	if err != nil {
		return nil, err
	}
	image, err := o.image(stage, s)
	if err != nil {
		return nil, err
	}
	return append([]string{deb, tar, image, filepath.Join(stage, "Containerfile")}, made...), nil
}

// list returns a file of this folder that lists what is packaged, without the lines of a program that is not.
func (o *options) list(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(o.root, "packaging", name))
	if err != nil || o.discover {
		return string(b), err
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, discover) {
			out.WriteString(line)
		}
	}
	return out.String(), nil
}
