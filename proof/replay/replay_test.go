package replay_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	product "github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/replay"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/simtest"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// up opens and closes a model with its driver, as `responder probe -stage up` does.
func up(t *testing.T, m sim.Model, mask bool) (*evidence.File, []string) {
	t.Helper()
	port, far, device := simtest.Serve(t, m)
	far.SetUp(true)
	var c product.Config
	c.Driver, c.Device = "auto", device
	f := must.Get(evidence.Run(context.Background(), evidence.Options{Card: c, Stage: evidence.StageUp,
		Wait: 50 * time.Millisecond, Mask: mask}))(t)
	return f, port.Violations()
}

func again(t *testing.T, f *evidence.File) *evidence.File {
	t.Helper()
	m := must.Get(replay.Model(f))(t)
	got, violations := up(t, m, false)
	for _, v := range violations {
		t.Error("violation: ", v)
	}
	return got
}

// said are the replies to queries about the device, and the refused commands, in order.
func said(f *evidence.File) (all []string) {
	questions := regexp.MustCompile(`^(QUERY_HCA_CAP|QUERY_ADAPTER|QUERY_DEV_CAP|get |feature )`)
	for _, e := range f.Trace {
		switch {
		case e.Refused():
			all = append(all, e.Name+" refused")
		case questions.MatchString(e.Name):
			all = append(all, e.Name+" "+hex.EncodeToString(e.Out))
		}
	}
	return all
}

// local matches text that differs from run to run: the path of the socket, and the checksum of an EEPROM that is
// corrupt in a random word.
var local = regexp.MustCompile(`vfio-user:[^ ]*|0x[0-9a-f]{4}\b`)

func same(t *testing.T, was, is *evidence.File) {
	t.Helper()
	if local.ReplaceAllString(is.Error, "") != local.ReplaceAllString(was.Error, "") {
		t.Fatalf("the driver ended with %q, with %q before", is.Error, was.Error)
	}
	a, b := said(was), said(is)
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Fatalf("answer %d differs:\n%v\nwas\n%v", i, at(b, i), at(a, i))
		}
	}
	if was.Info == nil {
		return
	}
	steps := func(f *evidence.File) (all []string) {
		for _, n := range f.Info.Notes {
			if strings.HasPrefix(n, "fell back") || strings.HasPrefix(n, "link mode") {
				all = append(all, local.ReplaceAllString(n, ""))
			}
		}
		return all
	}
	if w, i := was.Info, is.Info; i.Model != w.Model || i.Push != w.Push || i.MTU != w.MTU ||
		!slices.Equal(steps(was), steps(is)) {
		t.Errorf("opened as %+v, as %+v before", i, w)
	}
}

func at(all []string, i int) string {
	if i >= len(all) {
		return "(no more)"
	}
	return all[i][:min(len(all[i]), 300)]
}

// A probe file of each model creates a model that replies in the same way, also with masked addresses.
func TestRoundTrip(t *testing.T) {
	needs.Long(t)
	mac := [6]byte{0x02, 0xA1, 0xB2, 0xC3, 0xD4, 0xE5}
	for _, c := range catalogue.All {
		if c.Driver == "" {
			continue
		}
		for i, p := range c.Profiles[:min(3, len(c.Profiles))] {
			for _, mask := range []bool{true, false}[:2-min(i, 1)] {
				name := c.Name + " " + p.Name
				if mask {
					name += " masked"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					f, _ := up(t, p.New(mac), mask)
					same(t, f, again(t, f))
				})
			}
		}
	}
}

// A probe file says which module or cable is plugged in, without its serial number.
func TestModule(t *testing.T) {
	needs.Long(t)
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	for name, m := range map[string]sim.Model{
		"ixgbe":           ixgbesim.New(ixgbesim.Options{MAC: mac}),
		"mlx4":            mlx4sim.New(mlx4sim.Options{MAC: mac}),
		"mlx4 InfiniBand": mlx4sim.New(mlx4sim.Options{MAC: mac, Link: mlx4sim.InfiniBand}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := up(t, m, true)
			if f.Error != "" {
				t.Fatal(f.Error)
			}
			var read []byte
			for _, e := range f.Trace {
				read = append(read, e.Out...)
			}
			if !bytes.Contains(read, []byte("REBOUND         ")) || !bytes.Contains(read, []byte("MODEL ")) {
				t.Error("the vendor and part of the module are not in the file")
			}
			if bytes.Contains(read, []byte("SERIAL")) {
				t.Error("the module's serial number is in the file")
			}
			again(t, f)
		})
	}
}

// If a card refuses something, so does its replay: the driver falls back or fails in the same way.
func TestRefusals(t *testing.T) {
	needs.Long(t)
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	refusingENA := enasim.New(enasim.Options{MAC: mac})
	first := true
	refusingENA.FailAdmin(func(c string) uint8 {
		if c == "CREATE_SQ" && first {
			first = false
			return 1
		}
		return 0
	})
	wrongEEPROM := ixgbesim.New(ixgbesim.Options{MAC: mac})
	wrongEEPROM.CorruptEEPROM()
	for name, c := range map[string]struct {
		m    sim.Model
		step string // fallback shown in Info
		err  string
	}{
		"ena": {m: refusingENA, step: "entries of 128"},
		"mlx5": {m: mlx5sim.New(mlx5sim.Options{MAC: mac, Status: func(op uint16) (uint8, uint32) {
			if op == 0x200 { // CREATE_MKEY
				return 3, 0x123456
			}
			return 0, 0
		}}), step: "0x00123456"},
		"mlx5 fails": {m: mlx5sim.New(mlx5sim.Options{MAC: mac, Status: func(op uint16) (uint8, uint32) {
			if op == 0x904 { // CREATE_SQ
				return 3, 0x654321
			}
			return 0, 0
		}}), err: "0x00654321"},
		"ixgbe":  {m: wrongEEPROM, err: "EEPROM checksum is wrong"},
		"optics": {m: ixgbesim.New(ixgbesim.Options{MAC: mac, Module: ixgbesim.DualRate}), step: "module: 10GBASE-SR, 1000BASE-SX, REBOUND MODEL SR/SX 1"},
		"a cage": {m: ixgbesim.New(ixgbesim.Options{MAC: mac, Module: ixgbesim.Empty}), step: "module: none answers"},
		"virtio": {m: virtiosim.New(virtiosim.Options{MAC: mac, Lacks: virtiosim.Bits(18), Limit: 64, MTU: 1400})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := up(t, c.m, true)
			if !strings.Contains(f.Error, c.err) || (f.Error == "") != (c.err == "") {
				t.Fatalf("error %q, want %q", f.Error, c.err)
			}
			if c.step != "" && !strings.Contains(strings.Join(f.Info.Notes, "\n"), c.step) {
				t.Fatalf("notes %q lack %q", f.Info.Notes, c.step)
			}
			same(t, f, again(t, f))
		})
	}
}

// Files from users' cards are in testdata, each named after its problem; REBOUND_PROBE names one more. On the replayed
// card, the driver behaves as on the real one, or better: a file that ended with an error may now open.
func TestFiles(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/*.tar.zst"))(t)
	if extra := os.Getenv("REBOUND_PROBE"); extra != "" {
		files = append(files, extra)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := must.Get(evidence.Read(path))(t)
			got := again(t, f)
			t.Logf("on the card: %s\nreplayed: %s", f.Summary(), got.Summary())
			if got.Error != "" {
				t.Errorf("the driver ended with %q, on the card with %q", got.Error, f.Error)
			}
		})
	}
}

// The public recording of Linux's driver on a ConnectX-4 (published by the Snabb project) as a probe file: our driver
// can open a model with the capabilities of that card.
func TestRecordedConnectX4(t *testing.T) {
	const name = "shared/witness/mlx5_core-connectx4-fw14.12.1220.txt.gz"
	in, err := os.Open("../../../" + name)
	if err != nil {
		in, err = os.Open("../../../../" + name) // the parent repository of a worktree
	}
	if err != nil {
		t.Skip("the recording of a ConnectX-4 is not here: ", err)
	}
	defer in.Close()
	z := must.Get(gzip.NewReader(in))(t)
	f := &evidence.File{Driver: "mlx5", ID: pci.ID{Vendor: 0x15B3, Device: 0x1013}}
	f.Trace = recording(t, z)
	for i, v := range []uint32{12<<16 | 14, 5<<16 | 1220} { // in the format of the initialization segment
		f.Trace = append(f.Trace, cmdtrace.Entry{Kind: cmdtrace.Read, Name: []string{"BAR0+0x0", "BAR0+0x4"}[i],
			Width: 4,
			Value: uint64(binary.BigEndian.Uint32(binary.LittleEndian.AppendUint32(nil, v)))})
	}
	got := again(t, f)
	if got.Error != "" || !strings.Contains(got.Info.Model, "firmware 14.12.1220") {
		t.Fatalf("error %q, %+v", got.Error, got.Info)
	}
	compared := 0
	for _, e := range f.Trace {
		if e.Name != "QUERY_HCA_CAP" || e.OpMod&1 != 0 { // the current values change with SET_HCA_CAP
			continue
		}
		i := slices.IndexFunc(got.Trace, func(g cmdtrace.Entry) bool {
			return g.Opcode == e.Opcode &&
				g.OpMod == e.OpMod
		})
		if i < 0 || !bytes.Equal(got.Trace[i].Out, e.Out) {
			t.Errorf("capabilities %#x are not those recorded", e.OpMod)
		}
		compared++
	}
	if compared < 3 {
		t.Errorf("%d kinds of capabilities compared", compared)
	}
	t.Logf("%s, %s; %d kinds of capabilities as recorded\n%s", got.Info.Model, got.Info.Push, compared,
		strings.Join(got.Info.Notes, "\n"))
}

// recording reads the commands from mlx5_core's dump: an entry of 64 bytes with the first 16 bytes of input and output
// inline, then mailboxes of 576 bytes that contain 512 each.
func recording(t *testing.T, in *gzip.Reader) (all []cmdtrace.Entry) {
	t.Helper()
	head := regexp.MustCompile(`dump command .*\(0x[0-9a-f]+\) (INPUT|OUTPUT)`)
	line := regexp.MustCompile(`\] [0-9a-f]{3,}: ((?:[0-9a-f]{8} ?){4})`)
	var dumps [][]byte
	for s := bufio.NewScanner(in); s.Scan(); {
		if head.MatchString(s.Text()) {
			dumps = append(dumps, nil)
		} else if m := line.FindStringSubmatch(s.Text()); m != nil && len(dumps) > 0 {
			b := must.Get(hex.DecodeString(strings.ReplaceAll(m[1], " ", "")))(t)
			dumps[len(dumps)-1] = append(dumps[len(dumps)-1], b...)
		}
	}
	data := func(dump []byte, inline int, size uint32) []byte {
		b := append([]byte(nil), dump[inline:inline+16]...)
		for at := 64; at+576 <= len(dump); at += 576 {
			b = append(b, dump[at:at+512]...)
		}
		return b[:min(int(size), len(b))]
	}
	be := binary.BigEndian
	for i := 0; i+1 < len(dumps); i += 2 {
		e := dumps[i]
		in, out := data(e, 0x10, be.Uint32(e[0x04:])), data(dumps[i+1], 0x20, be.Uint32(e[0x38:]))
		r := cmdtrace.Entry{Kind: cmdtrace.Command, Opcode: uint32(be.Uint16(in)), OpMod: uint32(be.Uint16(in[6:])),
			In: in, Out: out}
		if r.Name = "command"; r.Opcode == 0x100 {
			r.Name = "QUERY_HCA_CAP"
		}
		if len(out) >= 8 {
			r.Status, r.Syndrome = uint32(out[0]), be.Uint32(out[4:])
		}
		all = append(all, r)
	}
	return all
}
