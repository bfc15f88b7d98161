package evidence

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

var device = [6]byte{0x06, 0xA1, 0xB2, 0xC3, 0xD4, 0xE5}

// sample is a file of a device whose address is mac, in each form that a card, a driver or its log has.
func sample(mac [6]byte) *File {
	le, be := binary.LittleEndian, slices.Clone(mac[:])
	slices.Reverse(be)
	text := fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	f := &File{Version: Version, Program: "responder 1", Began: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Stage: StageLoop,
		Device: "0000:03:00.0", Driver: "toy", ID: pci.ID{Vendor: 0x8086, Device: 0x10fb}, Took: 1_234_567_890,
		Host: Host{Kernel: "6.12", Arch: "amd64", IOMMU: "DMA", Function: map[string]string{"numa_node": "0"}},
		Info: &nic.Info{Driver: "toy", Model: "Toy X1", MAC: text, Push: "tail", Backend: nic.Silicon, Notes: []string{"of " + text, "a note"}},
		Link: &nic.Link{Up: true, Speed: 10_000}, Stats: &nic.Stats{TxFrames: 1},
		Loop:  &Loop{To: "itself", Bytes: 60, Sent: true, Counted: true, After: time.Millisecond},
		Error: "no " + hex.EncodeToString(mac[:]), Changed: []string{"BAR 0", "BAR 1"}, Log: "level=INFO mac=" + text + "\n"}
	f.Config = append(slices.Concat(make([]byte, 64), mac[:], be), make([]byte, 0x100-76)...)
	serial := func(id uint16, next uint32, body []byte) { // an extended capability
		f.Config = append(le.AppendUint32(f.Config, uint32(id)|1<<16|next<<20), body...)
		f.Config = append(f.Config, make([]byte, 12-len(body))...)
	}
	serial(1, 0x110, []byte("12345678"))
	serial(3, 0x120, nil)
	serial(4, 0, []byte("12345678"))
	long := func(flip, low byte) []byte {
		return []byte{mac[0] ^ flip, mac[1], mac[2], 0xFF, low, mac[3], mac[4], mac[5]}
	}
	for _, form := range [][]byte{mac[:], be, long(0, 0xFF), long(0, 0xFE), long(2, 0xFE), long(2, 0xFF),
		{mac[0], mac[1], mac[2], 3, 0, mac[3], mac[4], mac[5]}, []byte("another")} {
		back := slices.Clone(form)
		slices.Reverse(back)
		f.Trace = append(f.Trace, cmdtrace.Entry{Kind: cmdtrace.Command, Name: "QUERY", In: slices.Concat([]byte{9}, form, form, []byte{8}),
			Out: back, Err: "refused " + text, Opcode: 0x10, OpMod: 1, Modifier: 2, Status: uint32(len(form)) % 2, Syndrome: 7})
	}
	access := func(kind string, width int, value uint64) {
		f.Trace = append(f.Trace, cmdtrace.Entry{Kind: kind, Name: "BAR0+0x58", Width: width, Value: value})
	}
	for _, kind := range []string{cmdtrace.Read, cmdtrace.Write} {
		access(kind, 4, uint64(le.Uint32(mac[:])))
		access(kind, 4, 0x8000_0000|uint64(le.Uint16(mac[4:])))
		for w := 0; w < 6; w += 2 {
			access(kind, 4, 0x1234|uint64(le.Uint16(mac[w:]))<<16)
		}
		access(kind, 4, 0x77777777)
	}
	for _, b := range mac {
		access(cmdtrace.Read, 1, uint64(b))
	}
	access(cmdtrace.Read, 1, 0x55)
	return f
}

// A mask replaces each form of the address, and nothing else; the serial number is cleared.
func TestMask(t *testing.T) {
	got, want := sample(device), sample(stand)
	copy(got.Config[0x114:], "\x01\x02\x03\x04\x05\x06\x07\x08")
	got.mask()
	want.Masked = true
	if !reflect.DeepEqual(got, want) {
		for i := range got.Trace {
			if !reflect.DeepEqual(got.Trace[i], want.Trace[i]) {
				t.Errorf("entry %d is %+v, want %+v", i, got.Trace[i], want.Trace[i])
			}
		}
		t.Errorf("%+v\n%x, want\n%+v\n%x", *got, got.Config, *want, want.Config)
	}
	read, gid := sample(device), append([]byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0}, "own guid"...)
	read.Info = nil // the driver did not come so far
	read.Trace = append(read.Trace, cmdtrace.Entry{Name: cmdtrace.Address, In: slices.Clone(device[:])},
		cmdtrace.Entry{Kind: cmdtrace.Command, Name: "get network attributes",
			Out: slices.Concat(make([]byte, 8), gid)},
		cmdtrace.Entry{Kind: cmdtrace.Command, Name: "another", In: slices.Concat(gid[8:], gid, device[:3])})
	read.mask()
	end := read.Trace[len(read.Trace)-3:]
	check.Equal(t, string(end[0].In), string(stand[:]), "address %x")
	masked := string(slices.Concat([]byte{0xfe, 0x80}, make([]byte, 14)))
	check.Equal(t, string(end[1].Out), string(make([]byte, 8))+masked, "GID %x")
	check.Equal(t, string(end[2].In), string(make([]byte, 8))+masked+string(device[:3]), "GUID %x")
	check.Equal(t, read.Log, want.Log, "%q")
}

// A file is read as it was written, once, and its texts have all of it.
func TestFile(t *testing.T) {
	f := sample(device)
	dir := filepath.Join(t.TempDir(), "new")
	path := must.Get(f.Save(dir))(t)
	check.Equal(t, path, filepath.Join(dir, "rebound-probe-toy-loop-20260504T030201Z.tar.zst"), "saved as %s")
	check.Fails(t, "again", f.Write(path), os.ErrExist, path)
	if back := must.Get(Read(path))(t); !reflect.DeepEqual(back, f) {
		t.Errorf("%+v\nwritten as\n%+v", back, f)
	}
	whole := f.Summary() + f.configText()
	f.Error, f.Changed, f.Loop, f.Info, f.Link, f.Trace = "", nil, nil, nil, nil, nil
	golden.Equal(t, "testdata/file.txt", whole+f.Summary())
}

// What is sent to a peer and to itself, and which frames are the answers.
func TestFrames(t *testing.T) {
	frame, ours := request(device, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	check.Equal(t, hex.EncodeToString(frame), "ffffffffffff06a1b2c3d4e508060001080006040001"+
		"06a1b2c3d4e50a0000010000000000000a000002"+strings.Repeat("0", 36), "%s")
	reply := slices.Clone(frame)
	reply[21] = 2
	copy(reply[28:], "\x0a\x00\x00\x02")
	own, mine := ownFrame(device, time.Unix(0, 0x0102030405060708))
	check.Equal(t, hex.EncodeToString(own), "06a1b2c3d4e506a1b2c3d4e588b50102030405060708"+
		hex.EncodeToString([]byte("rebound probe"))+
		strings.Repeat("0", 50), "%s")
	for _, c := range []struct {
		of    func([]byte) bool
		good  []byte
		at    []int // bytes that decide
		least int
	}{{ours, reply, []int{12, 13, 20, 21, 28, 29, 30, 31}, 42},
		{mine, append(own, 0), []int{0, 6, 13, 21, 30, 59}, 60}} {
		check.Equal(t, c.of(c.good), true, "the answer: %t")
		check.Equal(t, c.of(c.good[:c.least]), true, "the shortest: %t")
		check.Equal(t, c.of(c.good[:c.least-1]), false, "too short: %t")
		for _, i := range c.at {
			other := slices.Clone(c.good)
			other[i] ^= 1
			check.Equal(t, c.of(other), false, fmt.Sprintf("with another byte %d: %%t", i))
		}
	}
	for text, ok := range map[string]bool{"06:a1:b2:c3:d4:e5": true, "06:a1:b2:c3:d4": false, "": false} {
		if mac, err := parseMAC(text); (err == nil) != ok || ok && mac != device {
			t.Errorf("%q: %x, %v", text, mac, err)
		}
	}
}

// The machine's description has what concerns a driver, and nothing else.
func TestCollect(t *testing.T) {
	root := t.TempDir()
	const function = "sys/bus/pci/devices/0000:03:00.0/"
	for name, text := range map[string]string{
		"proc/cpuinfo":         "processor : 0\nmodel name\t: Toy CPU\nmodel name\t: another\n",
		"proc/cmdline":         "root=/dev/sda1 iommu=pt secret=x pcie_aspm=off isolcpus=2\n",
		function + "numa_node": "1\n", function + "resource": "0x1000 0x1fff 0x1\n0x0 0x0 0x0\n0x9000 0x9fff 0x2\n", function + "unique_id": "x",
		"sys/kernel/debug/x86/pat_memtype_list": "PAT memtype list:\nPAT: [mem 0x0-0x1000] a\nPAT: [mem 0x1000-0x2000] b\n" +
			"PAT: [mem 0x1fff-0x2000] c\nPAT: [mem 0x2000-0x3000] d\nPAT: [mem 0x9800-0x9900] e\n",
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	h := collect(root, "0000:03:00.0")
	h.MemoryTypes = h.memoryTypes(root)
	if h.Kernel == "" || h.CPUs == 0 || h.Arch == "" {
		t.Errorf("%+v", h)
	}
	check.Equal(t, fmt.Sprintf("%s %q %s %q %q", h.CPU, h.CommandLine, h.IOMMU, h.Function, h.MemoryTypes),
		`Toy CPU ["iommu=pt" "pcie_aspm=off" "isolcpus=2"] none `+
			`map["numa_node":"1" "resource":"0x1000 0x1fff 0x1\n0x0 0x0 0x0\n0x9000 0x9fff 0x2"] `+
			`["PAT: [mem 0x1000-0x2000] b" "PAT: [mem 0x1fff-0x2000] c" "PAT: [mem 0x9800-0x9900] e"]`, "%s")
	must.OK(t, os.MkdirAll(filepath.Join(root, function, "iommu_group"), 0o755))
	check.Equal(t, collect(root, "0000:03:00.0").IOMMU, "unknown", "IOMMU %s")
	must.OK(t, os.WriteFile(filepath.Join(root, function, "iommu_group/type"), []byte("DMA-FQ\n"), 0o644))
	check.Equal(t, collect(root, "0000:03:00.0").IOMMU, "DMA-FQ", "IOMMU %s")
	check.Equal(t, len(collect(root, "eth0").Function), 0, "%d attributes of an interface")
	h = Host{}
	check.Equal(t, len(h.memoryTypes(t.TempDir())), 0, "%d lines without the table")
}

// toy is a card that receives what a test gives it, and fails where it says.
type toy struct {
	nic.Device
	in      [][]byte
	sent    []byte
	frames  uint64 // counted, for each that is sent
	counted uint64
	fails   string
	reads   int
}

func (c *toy) fail(at string) error {
	if c.fails == at {
		return errors.New("failed to " + at)
	}
	return nil
}

func (c *toy) Send(b []byte) error { c.sent, c.counted = b, c.counted+c.frames; return c.fail("send") }

func (c *toy) Recv(buf []byte) (n int, at int64, err error) {
	if len(c.in) > 0 {
		n, c.in = copy(buf, c.in[0]), c.in[1:]
	}
	return n, 0, c.fail("receive")
}

func (c *toy) ReadStats(s *nic.Stats) error {
	c.reads++
	s.TxFrames = c.counted
	return c.fail(fmt.Sprint("read ", c.reads))
}

// mail is a toy that carries messages.
type mail struct {
	nic.Messenger
	toy
}

func (m *mail) Endpoints() []nic.Endpoint                      { return make([]nic.Endpoint, 1) }
func (m *mail) Resolve(nic.Address) (p nic.Peer, err error)    { return p, m.fail("resolve") }
func (m *mail) Send(_ nic.Service, _ nic.Peer, b []byte) error { return m.toy.Send(b) }
func (m *mail) Recv(buf []byte) (int, int64, error)            { return m.toy.Recv(buf) }
func (m *mail) ReadStats(s *nic.Stats) error                   { return m.toy.ReadStats(s) }

// What the self-test says of one frame or message: whether it was sent, counted and received, and what failed.
func TestSelfTest(t *testing.T) {
	began := time.Unix(1, 0)
	own, _ := ownFrame(device, began)
	peer := netip.MustParseAddr("10.0.0.2")
	asked, _ := request(device, netip.MustParseAddr("10.0.0.1"), peer)
	reply := slices.Clone(asked)
	reply[21] = 2
	copy(reply[28:], peer.AsSlice())
	for _, c := range []struct {
		name  string
		card  toy
		mail  bool
		peer  bool
		want  Loop
		fails string
	}{
		{"it returns", toy{in: [][]byte{reply, nil, own}, frames: 1}, false, false,
			Loop{"itself", 60, true, true, true, 0}, ""},
		{"it is not counted", toy{in: [][]byte{own}}, false, false, Loop{"itself", 60, true, false, true, 0}, ""},
		{"it does not return", toy{in: [][]byte{asked}, frames: 1}, false, false,
			Loop{"itself", 60, true, true, false, 0}, ""},
		{"a peer", toy{in: [][]byte{own, reply}, frames: 1}, false, true,
			Loop{"a peer, by ARP", 60, true, true, true, 0}, ""},
		{"a silent peer", toy{frames: 1}, false, true, Loop{"a peer, by ARP", 60, true, true, false, 0},
			"the peer did not answer within 5ms"},
		{"a message", toy{in: [][]byte{own[:3], []byte("GRH rebound probe")}, frames: 1}, true, false,
			Loop{"itself", 13, true, true, true, 0}, ""},
		{"no queue pair", toy{fails: "resolve"}, true, false, Loop{To: "itself"}, "failed to resolve"},
		{"not sent", toy{fails: "send"}, false, false, Loop{To: "itself", Bytes: 60}, "failed to send"},
		{"not received", toy{fails: "receive"}, false, false, Loop{To: "itself", Bytes: 60, Sent: true},
			"failed to receive"},
		{"counters before", toy{fails: "read 1"}, false, false, Loop{To: "itself", Bytes: 60}, "failed to read 1"},
		{"counters after", toy{in: [][]byte{own}, fails: "read 2"}, false, false,
			Loop{"itself", 60, true, false, true, 0}, "failed to read 2"},
	} {
		f := &File{Info: &nic.Info{MAC: "06:a1:b2:c3:d4:e5"}, Began: began}
		o := Options{Wait: 5 * time.Millisecond}
		if c.want.Returned {
			o.Wait = time.Minute
		}
		if c.peer {
			o.From, o.Peer = netip.MustParseAddr("10.0.0.1"), peer
		}
		var port nic.Answerer = &c.card
		if c.mail {
			port = &mail{toy: c.card}
		}
		err := f.loop(t.Context(), port, o)
		if c.fails == "" {
			check.OK(t, err)
		} else {
			check.Fails(t, c.name, err, nil, c.fails)
		}
		check.Equal(t, f.Loop.After > 0, f.Loop.Returned, c.name+": after %t")
		f.Loop.After = 0
		check.Equal(t, *f.Loop, c.want, c.name+": %+v")
	}
	f := &File{Info: &nic.Info{Driver: "x"}, Config: make(ConfigHex, 64)}
	check.Fails(t, "a card that only answers", f.loop(t.Context(), struct{ nic.Answerer }{}, Options{}), nil,
		"driver x sends nothing")
	ended, end := context.WithCancel(t.Context())
	end()
	f.Info.MAC = "06:a1:b2:c3:d4:e5"
	check.Fails(t, "Ctrl-C", f.loop(ended, &toy{}, Options{Wait: time.Minute}), context.Canceled)
	f.Info.MAC = "none"
	check.Fails(t, "another address", f.loop(t.Context(), &toy{}, Options{}), nil, `"none" is not an Ethernet address`)
	check.Contains(t, strings.Join(f.compare("ffff:ff:1f.7", nil), "\n"), "whether it is: open ")
	f.Config = nil
	check.Equal(t, len(f.compare("ffff:ff:1f.7", nil)), 0, "%d differences of what was not opened")
}
