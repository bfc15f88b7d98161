package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf16"

	"golang.org/x/sys/unix"
)

// label is that of the stick's file system: see image/disk.go.
const label = "REBOUND"

// stick is the FAT file system with the configuration. It is mounted only while it is read or written, so that it can
// be pulled at any time.
type stick struct {
	mu     sync.Mutex
	device string // of the partition in use, "sda1"; empty if there is none
	serial string // changes when the device is replaced, also by the same one
}

var errNoStick = errors.New("no stick")

// find looks for the stick, and reports whether it is another one than before, or was plugged in again. It prefers the
// partition that the firmware booted from, then one with the label, then any FAT file system that has a configuration.
func (s *stick) find() (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	booted := strings.ToLower(efiVariable("LoaderDevicePartUUID"))
	best, found := 0, ""
	entries, _ := os.ReadDir("/sys/class/block")
	for _, e := range entries {
		name, ok := fatLabel("/dev/" + e.Name())
		if !ok {
			continue
		}
		rank := 0
		switch uevent, _ := os.ReadFile("/sys/class/block/" + e.Name() + "/uevent"); {
		case booted != "" && bytes.Contains(bytes.ToLower(uevent), []byte("partuuid="+booted)):
			rank = 3
		case name == label:
			rank = 2
		case e.Name() == s.device, s.has(e.Name(), fileName):
			rank = 1
		}
		if rank > best {
			best, found = rank, e.Name()
		}
	}
	serial := ""
	if found != "" {
		serial = diskSequence(found)
	}
	changed = found != s.device || serial != s.serial
	s.device, s.serial = found, serial
	return changed
}

// diskSequence returns the kernel's number of a partition's disk, which is new for each disk that appears.
func diskSequence(partition string) string {
	for _, f := range []string{"/sys/class/block/" + partition + "/diskseq",
		"/sys/class/block/" + partition + "/../diskseq"} {
		if b, err := os.ReadFile(f); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	// "..", because the entry in /sys/class/block is a link to the partition below its disk.
	if to, err := filepath.EvalSymlinks("/sys/class/block/" + partition); err == nil {
		if b, err := os.ReadFile(filepath.Dir(to) + "/diskseq"); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// fatLabel reads the label in a FAT boot sector (Microsoft's "FAT32 File System Specification").
func fatLabel(device string) (name string, ok bool) {
	f, err := os.Open(device)
	if err != nil {
		return "", false
	}
	defer f.Close()
	b := make([]byte, 512)
	if _, err := io.ReadFull(f, b); err != nil || b[510] != 0x55 || b[511] != 0xaa {
		return "", false
	}
	switch {
	case bytes.HasPrefix(b[82:], []byte("FAT32")):
		return strings.TrimSpace(string(b[71:82])), true
	case bytes.HasPrefix(b[54:], []byte("FAT")):
		return strings.TrimSpace(string(b[43:54])), true
	}
	return "", false
}

func (s *stick) has(device, name string) (yes bool) {
	mounted(device, unix.MS_RDONLY, func(dir string) error {
		yes = exists(filepath.Join(dir, name))
		return nil
	})
	return yes
}

// mounted mounts a partition, calls use, and unmounts it.
func mounted(device string, flags uintptr, use func(dir string) error) error {
	const dir = run + "/stick"
	if err := mount("/dev/"+device, dir, "vfat", flags|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSUID,
		"utf8"); err != nil {
		return err
	}
	err := use(dir)
	if e := unix.Unmount(dir, 0); e != nil {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", device, e), unix.Unmount(dir, unix.MNT_DETACH))
	}
	return err
}

// use mounts the stick for use.
func (s *stick) use(flags uintptr, use func(dir string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.device == "" {
		return errNoStick
	}
	return mounted(s.device, flags, use)
}

// read returns a file's text, which is empty if the stick does not have the file.
func (s *stick) read(name string) (text string, err error) {
	err = s.use(unix.MS_RDONLY, func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		text = string(b)
		return err
	})
	return text, err
}

// write writes one file and flushes it.
func (s *stick) write(name string, body []byte) error {
	return s.use(0, func(dir string) error { return writeNew(filepath.Join(dir, name), body) })
}

// copyTree copies the files below from to a folder of the stick, without those that it has already, and flushes each.
func (s *stick) copyTree(from, to string) error {
	return s.use(0, func(dir string) error {
		return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			target := filepath.Join(dir, to, name)
			info, err := d.Info()
			if err != nil {
				return err
			}
			if there, err := os.Stat(target); err == nil && there.Size() == info.Size() {
				return nil
			}
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			return writeNew(target, body)
		})
	})
}

// writeNew writes a file under another name and then renames it, so that what is under the name is whole. It leaves
// nothing if it fails.
func writeNew(name string, body []byte) (err error) {
	temporary := name + ".new"
	f, err := os.Create(temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(temporary)
		}
	}()
	_, err = f.Write(body)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, name)
}

// confirmBoot removes systemd-boot's counter from the name of the file that this machine booted from, which marks it as
// good: see "Automatic Boot Assessment" in systemd's documentation. It returns the file's new name, or "" if no boots
// are counted.
func (s *stick) confirmBoot() (string, error) {
	from := strings.ReplaceAll(efiVariable("LoaderBootCountPath"), `\`, "/")
	if from == "" {
		return "", nil
	}
	base, _, ok := strings.Cut(filepath.Base(from), "+")
	if !ok {
		return "", fmt.Errorf("%s has no boot counter", from)
	}
	good := base + ".efi"
	return good, s.use(0, func(dir string) error {
		if exists(filepath.Join(dir, filepath.Dir(from), good)) {
			return fmt.Errorf("%s exists already", good)
		}
		return os.Rename(filepath.Join(dir, from), filepath.Join(dir, filepath.Dir(from), good))
	})
}

// efiVariable returns a variable that systemd-boot or the stub set, "" if there is none.
func efiVariable(name string) string {
	b, err := os.ReadFile("/sys/firmware/efi/efivars/" + name + "-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
	if err != nil || len(b) < 4 {
		return ""
	}
	var units []uint16
	for b = b[4:]; len(b) >= 2; b = b[2:] { // behind the attributes
		units = append(units, binary.LittleEndian.Uint16(b))
	}
	return strings.TrimRight(string(utf16.Decode(units)), "\x00")
}
