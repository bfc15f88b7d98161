// Command image builds the appliance: a disk image and the same system as one UEFI program.
//
//	go -C packaging/appliance run ./image -out ../../out/image
//
// It is a separate module, because the libraries for disks, archives and DHCP are no dependencies of the programs. It
// needs apt and dpkg-deb, and neither root, loop devices nor mounts.
package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	o := options{}
	flag.StringVar(&o.root, "root", "../..", "the repository's `FOLDER`")
	flag.StringVar(&o.out, "out", "../../out/image", "`FOLDER` for the image")
	flag.StringVar(&o.cache, "cache", "../../.cache/appliance", "`FOLDER` for the Debian packages")
	fetch := flag.String("fetch", "",
		"only download these Debian `PACKAGES` (comma-separated) into the cache, and print their paths")
	flag.StringVar(&o.extra, "append", "", "more `WORDS` for the kernel's command line")
	flag.StringVar(&o.version, "version", "", "`VERSION` instead of the commit's, for tests of upgrades")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "image: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	err := error(nil)
	if *fetch != "" {
		err = o.fetchOnly(strings.Split(*fetch, ","))
	} else {
		err = o.build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		if errors.Is(err, errCannot) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

type options struct {
	root, out, cache string
	extra            string // words for the kernel's command line
	version          string // empty for the commit's
}

func (o *options) absolute() (err error) {
	for _, p := range []*string{&o.root, &o.out, &o.cache} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) fetchOnly(names []string) error {
	if err := o.absolute(); err != nil {
		return err
	}
	d, err := openDebian(o.cache)
	if err != nil {
		return err
	}
	for _, name := range names {
		p, err := d.fetch(name)
		if err != nil {
			return err
		}
		fmt.Println(p.file)
	}
	return nil
}

// build writes rebound.efi, rebound.img, rebound.ipxe, rebound.toml and rebound.cdx.json.
func (o *options) build() error {
	if err := o.absolute(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	d, err := openDebian(o.cache)
	if err != nil {
		return err
	}
	boot, err := d.fetch("systemd-boot-efi")
	if err != nil {
		return err
	}
	image, err := d.kernel()
	if err != nil {
		return err
	}
	release := strings.TrimPrefix(image.name, "linux-image-")
	efi, err := boot.read("/usr/lib/systemd/boot/efi/linuxx64.efi.stub",
		"/usr/lib/systemd/boot/efi/systemd-bootx64.efi")
	if err != nil {
		return err
	}
	program := filepath.Join(o.out, "init")
	if err := o.compile(program); err != nil {
		return err
	}
	v, err := o.stamp(program)
	if err != nil {
		return err
	}
	config, err := exec.Command(program, "config").Output()
	if err != nil {
		return fmt.Errorf("%s config: %w", program, err)
	}
	vmlinuz, initrd, err := o.initramfs(image, release, program)
	if err != nil {
		return err
	}
	osrel := fmt.Sprintf("ID=rebound\nNAME=Rebound\nPRETTY_NAME=\"Rebound %s\"\nVERSION_ID=%q\n", v.version, v.version)
	line := strings.Join(append(commandLine(), strings.Fields(o.extra)...), " ")
	unified, err := unify(efi[0], []section{
		{".osrel", []byte(osrel)}, {".cmdline", []byte(line)}, {".uname", []byte(release)}, {".initrd", initrd},
		{".linux", vmlinuz}})
	if err != nil {
		return err
	}
	disk := filepath.Join(o.out, "rebound.img")
	if err := writeDisk(disk, v.time, []diskFile{
		{"/EFI/BOOT/BOOTX64.EFI", efi[1]},
		{"/EFI/Linux/rebound-" + v.version + ".efi", unified},
		{"/loader/loader.conf", []byte(loaderConf)},
		{"/rebound.toml", bytes.ReplaceAll(config, []byte("\n"), []byte("\r\n"))},
	}); err != nil {
		return err
	}
	bom, err := components(program, v, []pkg{boot, image})
	if err != nil {
		return err
	}
	files := map[string][]byte{"rebound.efi": unified, "rebound.toml": config, "rebound.ipxe": []byte(script(line)),
		"rebound.cdx.json": bom}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(o.out, name), body, 0o644); err != nil {
			return err
		}
	}
	if err := os.Remove(program); err != nil {
		return err
	}
	fmt.Printf("%s: %s (%s), %s\n", disk, size(disk), image, boot)
	fmt.Printf("%s: %s\n", filepath.Join(o.out, "rebound.efi"), size(filepath.Join(o.out, "rebound.efi")))
	fmt.Printf("upgrade a stick: copy rebound.efi to EFI/Linux/rebound-%s+3.efi\n", v.version)
	return nil
}

func size(name string) string {
	info, err := os.Stat(name)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%.1f MB", float64(info.Size())/1e6)
}

// compile builds the one program of the appliance. It is init, rebound-responder and rebound-bench, by the name that it
// is started with: separate programs would be twice as large.
func (o *options) compile(to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", to, "./init")
	cmd.Dir = filepath.Join(o.root, "packaging", "appliance")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

type stamp struct {
	version string // without the v of Go's versions
	time    time.Time
}

// stamp returns the commit's version and time, which the linker recorded in the program. Two builds of one commit have
// the same.
func (o *options) stamp(program string) (s stamp, err error) {
	b, err := buildinfo.ReadFile(program)
	if err != nil {
		return s, err
	}
	s.version = strings.TrimPrefix(b.Main.Version, "v")
	if o.version != "" {
		s.version = o.version
	}
	// FAT file names are case-insensitive, systemd-boot reads a plus sign as the start of its counter.
	s.version = strings.NewReplacer("+", ".", "(", "", ")", "").Replace(strings.ToLower(s.version))
	for _, v := range b.Settings {
		if v.Key == "vcs.time" {
			s.time, err = time.Parse(time.RFC3339, v.Value)
		}
	}
	if err == nil && s.time.IsZero() {
		err = fmt.Errorf("%s has no revision: build the image in a clone of the repository, with git installed",
			program)
	}
	return s, err
}
