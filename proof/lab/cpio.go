package lab

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// archive writes an initramfs: a cpio archive in the "newc" format. The kernel accepts several concatenated archives if
// each is padded to four bytes, and lets later files replace earlier ones.
type archive struct {
	w   *bufio.Writer
	n   int64
	ino int
	err error
}

func newArchive(w io.Writer) *archive { return &archive{w: bufio.NewWriter(w)} }

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
		a.n += int64(len(b))
	}
}

func (a *archive) pad() { a.write(make([]byte, (4-a.n%4)%4)) }

func (a *archive) entry(name string, mode uint32, body []byte) {
	a.ino++
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name)+1, 0, name))
	a.pad()
	a.write(body)
	a.pad()
}

func (a *archive) file(name string, perm uint32, body []byte) { a.entry(name, 0o100000|perm, body) }

func (a *archive) dir(name string) { a.entry(name, 0o040755, nil) }

// tree adds everything below dir.
func (a *archive) tree(dir string) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			a.dir(name)
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			a.entry(name, 0o120777, []byte(to))
		default:
			info, err := d.Info()
			if err != nil {
				return err
			}
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			a.file(name, uint32(info.Mode().Perm()), body)
		}
		return a.err
	})
	if a.err == nil {
		a.err = err
	}
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}
