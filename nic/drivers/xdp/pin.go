package xdp

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// Errors about pins, each explained where it is returned.
var (
	ErrNoPin   = errors.New("no such pin")
	ErrForeign = errors.New("not a responder's pin, or another version's")
)

// The files of a pin, beside xdpkit.PinLink. About is written first and the link last.
const (
	pinCPUs   = "cpus"
	pinClocks = "clocks"
	pinAbout  = "about"
)

// aboutSize is the greatest length of a pin's description, in bytes.
const aboutSize = 1 << 16

// About is a pin's description of itself. It is written by the responder that created the pin or joined it last.
type About struct {
	Pin       string   `json:"pin"`
	Layout    string   `json:"layout"`    // of the maps: only a responder with the same one can join
	Device    string   `json:"device"`    // the interface's name
	Ifindex   int      `json:"ifindex"`   // and its number, in
	Namespace uint64   `json:"namespace"` // the network namespace of this inode number
	Hook      string   `json:"hook"`      // "xdp-drv" or "xdp-generic"
	MAC       string   `json:"mac"`       // when a responder joined it last
	Addresses []string `json:"addresses"`
	UDPPorts  []uint16 `json:"udp_ports,omitempty"` // omitted if there are thousands
	STAMP     []uint16 `json:"stamp_ports,omitempty"`
	Mode      string   `json:"mode"` // "strict" or "open"
	// receive timestamp of a STAMP reply: "program", when the program started, or "card"
	T2      string    `json:"t2"`
	T3      string    `json:"t3"`      // transmit timestamp: "program", when the program wrote it, before the doorbell
	Since   time.Time `json:"since"`   // when it was pinned
	Updated time.Time `json:"updated"` // when a responder joined it last
	PID     int       `json:"pid"`     // of that responder
	Groups  []string  `json:"groups,omitempty"`
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// CheckPin returns an error for an invalid pin name. An empty name means no pin.
func CheckPin(name string) error {
	if name != "" && !goodName.MatchString(name) {
		return fmt.Errorf("%q cannot name a pin: want 1 to 32 letters, digits, - and _ (bpffs has no dots)", name)
	}
	return nil
}

func layoutSum() string {
	h := fnv.New64a()
	h.Write([]byte(layout()))
	return fmt.Sprintf("%016x", h.Sum64())
}

// bpffs returns an error if there is no BPF file system where pins are.
func bpffs() error {
	const mount = "/sys/fs/bpf"
	var s unix.Statfs_t
	if err := unix.Statfs(mount, &s); err != nil || s.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("no BPF file system is mounted at %s: mount -t bpf bpf %s", mount, mount)
	}
	return nil
}

// lockPins prevents two processes from changing pins concurrently, until release is called.
func lockPins() (release func(), err error) {
	if err := bpffs(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(xdpkit.PinRoot, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Open(xdpkit.PinRoot, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", xdpkit.PinRoot, err)
	}
	for {
		err = unix.Flock(fd, unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: flock: %w", xdpkit.PinRoot, err)
	}
	return func() { unix.Close(fd) }, nil
}

type pin struct {
	about About
	notes *ebpf.Map // the map with about
	maps  *maps
	link  link.Link
	gone  bool // the interface was removed, and the link is nil
}

func (p *pin) close() {
	if p.maps != nil {
		p.maps.close()
	}
	if p.notes != nil {
		p.notes.Close()
	}
	if p.link != nil {
		p.link.Close()
	}
}

func pinPath(name, file string) string { return filepath.Join(xdpkit.PinRoot, name, file) }

// openPin opens the pin of that name. It returns ErrNoPin if there is none, or only an incomplete one, and ErrForeign
// for one that no responder wrote.
func openPin(name string) (_ *pin, err error) {
	if err := bpffs(); err != nil {
		return nil, err
	}
	p := &pin{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	files, err := os.ReadDir(pinPath(name, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pin %q: %w", name, ErrNoPin)
	} else if err != nil {
		return nil, err
	}
	if p.notes, err = ebpf.LoadPinnedMap(pinPath(name, pinAbout), nil); errors.Is(err, fs.ErrNotExist) &&
		len(files) == 0 {
		return nil, fmt.Errorf("pin %q: %w", name, ErrNoPin)
	} else if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("pin %q: it takes CAP_BPF (run as root): %w", name, err)
	} else if err != nil {
		return nil, fmt.Errorf("pin %q: %w: %s holds no readable %s: %w", name, ErrForeign, pinPath(name, ""), pinAbout,
			err)
	}
	text := make([]byte, aboutSize)
	if p.notes.ValueSize() != aboutSize {
		return nil, fmt.Errorf("pin %q: %w: %s has %d bytes, not %d", name, ErrForeign, pinPath(name, pinAbout),
			p.notes.ValueSize(), aboutSize)
	}
	if err := p.notes.Lookup(uint32(0), &text); err != nil {
		return nil, fmt.Errorf("pin %q: %s: %w", name, pinAbout, err)
	}
	if err := json.Unmarshal([]byte(strings.TrimRight(string(text), "\x00")), &p.about); err != nil {
		return nil, fmt.Errorf("pin %q: %w: %s: %w", name, ErrForeign, pinAbout, err)
	}
	if p.about.Layout != layoutSum() {
		return nil, fmt.Errorf("pin %q: %w: its counters are laid out as %s, this responder's as %s; `rebound-responder unpin %s` ends it, and its "+
			"counts are lost", name, ErrForeign, p.about.Layout, layoutSum(), name)
	}
	p.maps = &maps{}
	for file, m := range map[string]**ebpf.Map{pinCPUs: &p.maps.Cpus, pinClocks: &p.maps.Clocks} {
		if *m, err = ebpf.LoadPinnedMap(pinPath(name, file), nil); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("pin %q: %w: it was begun and not finished", name, ErrNoPin)
		} else if err != nil {
			return nil, fmt.Errorf("pin %q: %s: %w", name, file, err)
		}
	}
	if p.link, err = link.LoadPinnedLink(pinPath(name, xdpkit.PinLink), nil); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pin %q: %w: it was begun and not finished", name, ErrNoPin)
	} else if err != nil {
		return nil, fmt.Errorf("pin %q: %s: %w", name, xdpkit.PinLink, err)
	}
	if at, err := p.attachedTo(); err == nil && at == 0 { // the interface was removed, and the link with it
		p.link.Close()
		p.link, p.gone = nil, true
	}
	return p, nil
}

// attachedTo returns the number of the interface that the link is attached to, 0 if it was removed.
func (p *pin) attachedTo() (int, error) {
	if p.link == nil {
		return 0, nil
	}
	info, err := p.link.Info()
	if err != nil {
		return 0, err
	}
	if x := info.XDP(); x != nil {
		return int(x.Ifindex), nil
	}
	return 0, fmt.Errorf("a link of type %d, not XDP", info.Type)
}

// savePin pins the maps and the link under a's name. Existing maps are kept.
func savePin(a About, m *maps, l link.Link) error {
	folder := pinPath(a.Pin, "")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("pin %q: %w", a.Pin, err)
	}
	notes, err := ebpf.NewMap(&ebpf.MapSpec{Name: "about", Type: ebpf.Array, KeySize: 4, ValueSize: aboutSize,
		MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("pin %q: %w", a.Pin, err)
	}
	defer notes.Close()
	if err := writeAbout(notes, a); err != nil {
		return err
	}
	for _, t := range []struct {
		file string
		pin  func(string) error
	}{{pinAbout, notes.Pin}, {pinCPUs, m.Cpus.Pin}, {pinClocks, m.Clocks.Pin}, {xdpkit.PinLink, l.Pin}} {
		err := t.pin(pinPath(a.Pin, t.file))
		if err != nil {
			return fmt.Errorf("pin %q: %s: %w", a.Pin, t.file, err)
		}
	}
	return nil
}

func writeAbout(notes *ebpf.Map, a About) error {
	b, err := json.Marshal(a)
	if err == nil && len(b) > aboutSize {
		a.UDPPorts, a.STAMP = nil, nil
		b, err = json.Marshal(a)
	}
	if err != nil {
		return err
	}
	if err := notes.Put(uint32(0), append(b, make([]byte, aboutSize-len(b))...)); err != nil {
		return fmt.Errorf("pin %q: %s: %w", a.Pin, pinAbout, err)
	}
	return nil
}

// removePin removes a pin's files; the link is removed first, which stops the answering.
func removePin(name string) error {
	var all error
	files, err := os.ReadDir(pinPath(name, ""))
	if err != nil {
		return err
	}
	names := []string{xdpkit.PinLink}
	for _, f := range files {
		if f.Name() != xdpkit.PinLink {
			names = append(names, f.Name())
		}
	}
	for _, f := range names {
		if err := os.Remove(pinPath(name, f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return errors.Join(all, os.Remove(pinPath(name, "")))
}

// Pinned is a pin opened for reading: its description of itself, and its program's counts. Close closes it without
// removing it.
type Pinned struct {
	About    About
	Attached bool // its interface exists, and the program is attached
	counts   *counts
	pin      *pin
}

// Pins returns the names of all pins, sorted. Without a BPF file system there are none.
func Pins() ([]string, error) {
	if bpffs() != nil {
		return nil, nil
	}
	entries, err := os.ReadDir(xdpkit.PinRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// OpenPinned opens the pin of that name for reading. It returns ErrNoPin and ErrForeign, explained.
func OpenPinned(name string) (*Pinned, error) {
	p, err := openPin(name)
	if err != nil {
		return nil, err
	}
	c, err := newCounts(p.maps.Cpus)
	if err != nil {
		p.close()
		return nil, err
	}
	at, err := p.attachedTo()
	if err != nil {
		p.close()
		return nil, err
	}
	return &Pinned{About: p.about, Attached: at != 0, counts: c, pin: p}, nil
}

// Verdicts returns the outcomes of all frames since the pin was created.
func (p *Pinned) Verdicts() fastpath.Stats { return p.counts.verdicts() }

// Turnaround is Device.Turnaround, since the pin was created.
func (p *Pinned) Turnaround() Histogram { return p.counts.turnaround() }

// Close closes the pin without removing it.
func (p *Pinned) Close() { p.pin.close() }

// Unpin removes a pin: the program is detached, which a responder that joined it detects, and the counts are deleted.
// It also removes pins of other versions of the responder, and incomplete ones; for files that are not a responder's it
// returns ErrForeign. The multicast groups that were joined for it are left if the interface is in the calling thread's
// network namespace.
func Unpin(name string) error {
	if err := CheckPin(name); err != nil {
		return err
	}
	release, err := lockPins()
	if err != nil {
		return err
	}
	defer release()
	var left error
	p, err := openPin(name)
	switch {
	case err == nil:
		left = p.leaveGroups()
		p.close()
	case errors.Is(err, ErrNoPin):
		if _, err := os.Stat(pinPath(name, "")); err != nil {
			names, _ := Pins()
			return fmt.Errorf("pin %q: %w (pins: %s)", name, ErrNoPin, listed(names))
		}
	case errors.Is(err, ErrForeign):
		if !pinFilesOnly(name) {
			return err
		}
	default:
		return err
	}
	return errors.Join(left, detach(pinPath(name, xdpkit.PinLink)), removePin(name))
}

// detach detaches the program of a pinned link immediately. Closing the last of a link's files does so only later.
func detach(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer l.Close()
	return l.Detach()
}

// pinFilesOnly reports whether a folder has only files of a responder's pin.
func pinFilesOnly(name string) bool {
	files, err := os.ReadDir(pinPath(name, ""))
	if err != nil {
		return false
	}
	has := false
	for _, f := range files {
		switch f.Name() {
		case pinAbout:
			has = true
		case pinCPUs, pinClocks, xdpkit.PinLink:
		default:
			return false
		}
	}
	return has
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
