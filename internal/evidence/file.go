// Package probe records what a device reports and does while a driver brings it up, in one file that a user can send to
// us.
package evidence

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Version is the version of the file format. Readers accept it and earlier ones.
const Version = 1

// File is the result of one probe. Its JSON is probe.json, without the trace, which is in trace.jsonl.
type File struct {
	Version int       `json:"version"`
	Program string    `json:"program"` // version and source revision
	Began   time.Time `json:"began"`
	Stage   Stage     `json:"stage"`
	Masked  bool      `json:"masked"` // the device's address is replaced everywhere

	Device string    `json:"device"` // as the user named it
	Driver string    `json:"driver"`
	ID     pci.ID    `json:"id"`
	Host   Host      `json:"host"`
	Config ConfigHex `json:"config"` // configuration space before the driver had it

	Info  *nic.Info  `json:"info,omitempty"`
	Link  *nic.Link  `json:"link,omitempty"`
	Stats *nic.Stats `json:"stats,omitempty"`
	Loop  *Loop      `json:"loop,omitempty"`

	Took    time.Duration `json:"took_ns"`           // from opening to closed
	Error   string        `json:"error,omitempty"`   // why the stage was not reached
	Changed []string      `json:"changed,omitempty"` // what was not restored; should be empty

	Log   string           `json:"-"`
	Trace []cmdtrace.Entry `json:"-"`
}

// ConfigHex is configuration space.
type ConfigHex = cmdtrace.Bytes

// Host is the part of the machine that the driver depends on.
type Host struct {
	Kernel      string            `json:"kernel"`
	Arch        string            `json:"arch"`
	CPU         string            `json:"cpu"`
	CPUs        int               `json:"cpus"`
	CommandLine []string          `json:"command_line"` // words about PCI, IOMMU and isolation only
	IOMMU       string            `json:"iommu"`        // "translated", "none", or the domain's type
	Function    map[string]string `json:"function"`     // attributes in sysfs: reset_method, numa_node, resource
	MemoryTypes []string          `json:"memory_types"` // x86's table, of this function's BARs
}

// Loop is the self-test.
type Loop struct {
	To       string        `json:"to"`
	Bytes    int           `json:"bytes"`
	Sent     bool          `json:"sent"`     // the driver passed the frame to the device
	Counted  bool          `json:"counted"`  // the device counted a transmitted frame
	Returned bool          `json:"returned"` // the frame, or the peer's reply, was received
	After    time.Duration `json:"after_ns,omitempty"`
}

const about = `Written by "responder probe". probe.json: the host, the function and the results. trace.jsonl and trace.txt: each
command, register access and step, in order. config.txt: configuration space before the driver had the function. log.txt: the
driver's log. It contains no host name, user name or serial number.
`

// Write writes the file as a compressed archive, and makes its folder.
func (f *File) Write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return &os.PathError{Op: "create", Path: path, Err: os.ErrExist}
	}
	return atomicfile.Write(path, f.write)
}

func (f *File) write(w io.Writer) error {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	summary, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	var lines, text bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, e := range f.Trace {
		if err := enc.Encode(e); err != nil {
			return err
		}
		fmt.Fprintln(&text, e)
	}
	for _, part := range []struct {
		name string
		body []byte
	}{
		{"README.txt", []byte(about)}, {"summary.txt", []byte(f.Summary())}, {"probe.json", append(summary, '\n')}, {"trace.jsonl", lines.Bytes()},
		{"trace.txt", text.Bytes()}, {"config.txt", []byte(f.configText())}, {"log.txt", []byte(f.Log)},
	} {
		h := &tar.Header{Name: part.name, Mode: 0o644, Size: int64(len(part.body)), ModTime: f.Began}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(part.body); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// Files are untrusted input: limits for the size of a part, the size of all parts, and the number of trace entries.
const (
	most         = 64 << 20
	mostTogether = 4 * most
	mostEntries  = 1 << 19
)

// Read reads a file that Write wrote.
func Read(path string) (*File, error) {
	in, err := atomicfile.Input(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(most))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	f, found := &File{}, map[string]bool{}
	for t := tar.NewReader(io.LimitReader(z, mostTogether)); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if found[h.Name] {
			return nil, fmt.Errorf("%s: %q is in it twice", path, h.Name)
		}
		found[h.Name] = true
		body := io.LimitReader(t, most)
		switch h.Name {
		case "probe.json":
			err = json.NewDecoder(body).Decode(f)
		case "trace.jsonl":
			for d := json.NewDecoder(body); err == nil; {
				var e cmdtrace.Entry
				if err = d.Decode(&e); err == nil {
					f.Trace = append(f.Trace, e)
				}
				if len(f.Trace) > mostEntries {
					err = fmt.Errorf("more than %d entries", mostEntries)
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
		case "log.txt":
			var b []byte
			b, err = io.ReadAll(body)
			f.Log = string(b)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, h.Name, err)
		}
	}
	if !found["probe.json"] || f.Version < 1 || f.Version > Version {
		return nil, fmt.Errorf("%s: not a probe file of version 1 to %d", path, Version)
	}
	return f, nil
}

// Name returns the name of the probe file.
func (f *File) Name() string {
	return fmt.Sprintf("rebound-probe-%s-%s-%s.tar.zst", f.Driver, f.Stage, f.Began.UTC().Format("20060102T150405Z"))
}

// Save writes the file into a folder and returns its path.
func (f *File) Save(folder string) (string, error) {
	path := filepath.Join(folder, f.Name())
	return path, f.Write(path)
}

func (f *File) configText() string {
	var b strings.Builder
	for off := 0; off < len(f.Config); off += 16 {
		fmt.Fprintf(&b, "%03x: % x\n", off, []byte(f.Config[off:min(off+16, len(f.Config))]))
	}
	return b.String()
}

// Summary is the file's gist, in lines.
func (f *File) Summary() string {
	var b strings.Builder
	say := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	if f.Error != "" {
		say("stage %s failed: %s", f.Stage, f.Error)
	} else {
		say("stage %s succeeded in %v", f.Stage, f.Took.Round(time.Millisecond))
	}
	if l := f.Loop; l != nil {
		say("self-test: %d bytes to %s: sent %v, counted by the device %v, came back %v", l.Bytes, l.To, l.Sent,
			l.Counted, l.Returned)
	}
	if len(f.Changed) == 0 {
		say("the device was restored")
	}
	for _, c := range f.Changed {
		say("NOT restored: %s", c)
	}
	say("device %s (%v), driver %s", f.Device, f.ID, f.Driver)
	if f.Info != nil {
		say("%s, push %s, backend %s", f.Info.Model, f.Info.Push, f.Info.Backend)
		for _, n := range f.Info.Notes {
			say("note: %s", n)
		}
	}
	if f.Link != nil {
		say("link up %v, %d Mbit/s", f.Link.Up, f.Link.Speed)
	}
	say("kernel %s, %s, IOMMU %s", f.Host.Kernel, f.Host.Arch, f.Host.IOMMU)
	commands, refused := 0, 0
	for _, e := range f.Trace {
		if e.Kind == cmdtrace.Command {
			commands++
		}
		if e.Refused() {
			refused++
			say("refused: %s, opcode %#x, op_mod %#x, modifier %#x: status %#x, syndrome %#x", e.Name, e.Opcode,
				e.OpMod, e.Modifier, e.Status, e.Syndrome)
		}
	}
	say("%d entries in the trace, %d commands, %d of them refused", len(f.Trace), commands, refused)
	return b.String()
}
