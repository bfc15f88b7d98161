package mlx5sim

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// recordedCommand is a recorded command: Linux's input, and the card's output.
type recordedCommand struct {
	name    string
	in, out []byte
	cut     bool // the kernel's log lost the end
}

// readRecording parses the dumps of mlx5_core: an entry of 40h bytes, then mailboxes of 240h, dwords as the device sees
// them.
func readRecording(t *testing.T) []recordedCommand {
	f, err := os.Open("../../../shared/witness/mlx5_core-connectx4-fw14.12.1220.txt.gz")
	if err != nil {
		t.Skip("no recording of a ConnectX-4 beside the project: ", err)
	}
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	var (
		dump  = regexp.MustCompile(`dump command (.*)\((0x[0-9a-f]+)\) (INPUT|OUTPUT)`)
		line  = regexp.MustCompile(`^\[[^]]*\] [0-9a-f]+: ([0-9a-f ]+)$`)
		all   []recordedCommand
		bytes []byte
		isIn  bool
	)
	finish := func() {
		if len(bytes) < 64 {
			return
		}
		c := &all[len(all)-1]
		at, n := 16, int(binary.BigEndian.Uint32(bytes[4:]))
		if !isIn {
			at, n = 32, int(binary.BigEndian.Uint32(bytes[56:]))
		}
		msg := append([]byte(nil), bytes[at:at+16]...)
		for box := 64; box+mailbox <= len(bytes) && len(msg) < n; box += mailbox {
			msg = append(msg, bytes[box:box+cmdBlock]...)
		}
		c.cut = c.cut || len(msg) < n
		msg = append(msg, make([]byte, n)...)[:n]
		if isIn {
			c.in = msg
		} else {
			c.out = msg
		}
		bytes = nil
	}
	sc := bufio.NewScanner(z)
	for sc.Scan() {
		if m := dump.FindStringSubmatch(sc.Text()); m != nil {
			finish()
			if isIn = m[3] == "INPUT"; isIn {
				all = append(all, recordedCommand{name: m[1] + " " + m[2]})
			}
			continue
		}
		if m := line.FindStringSubmatch(sc.Text()); m != nil && len(all) > 0 {
			for _, w := range strings.Fields(m[1]) {
				v := must.Get(strconv.ParseUint(w, 16, 32))(t)
				bytes = binary.BigEndian.AppendUint32(bytes, uint32(v))
			}
		}
	}
	finish()
	return all
}

// TestRecording gives the model every command from the start of a real ConnectX-4, and compares the replies with the
// card's: the same length and the same bytes, except for capabilities that the model does not report.
func TestRecording(t *testing.T) {
	all := readRecording(t)
	if len(all) < 37 {
		t.Fatalf("the recording has %d commands", len(all))
	}
	x := newRig(t, Options{InitPages: 12868})
	x.address()
	boot := x.Alloc(bootPages * 4096)
	unclaim := func(caps []byte, kind int) (cleared int) {
		for _, n := range notModelled {
			b := caps[n.Off:]
			if v := binary.BigEndian.Uint32(b); n.kind == kind && v&n.Mask() != 0 {
				binary.BigEndian.PutUint32(b, v&^n.Mask())
				cleared++
			}
		}
		return cleared
	}
	unclaimed := 0
	for i, c := range all {
		opcode := binary.BigEndian.Uint16(c.in)
		switch opcode {
		case 0x108: // the recorded host's pages; used and missing pages are those of this host
			for k := range int(w32(c.in, 12)) {
				if at := c.in[16+8*k:]; k < bootPages && w32(c.in, 12) == bootPages {
					binary.BigEndian.PutUint64(at, boot.IOVA+uint64(4096*k))
				} else if c.cut && binary.BigEndian.Uint64(at) == 0 {
					binary.BigEndian.PutUint64(at, 1<<50+uint64(4096*k))
				}
			}
		case 0x109: // raises the values that the card offered, and keeps all others
			unclaim(c.in[16:], capGeneral)
		}
		got := x.m.command(c.in, len(c.out))
		want := append([]byte(nil), c.out...)
		if opcode == 0x100 {
			unclaimed += unclaim(want[16:], int(w32(c.in, 4)&0xffff)>>1)
		}
		if len(got) != len(want) {
			t.Errorf("%d, %s: %d bytes, the card answered %d", i, c.name, len(got), len(want))
		}
		for off := 0; off+4 <= len(want); off += 4 {
			if g, w := w32(got, off), w32(want, off); g != w {
				t.Errorf("%d, %s: at %02xh %08x, the card answered %08x", i, c.name, off, g, w)
			}
		}
	}
	if unclaimed == 0 {
		t.Error("nothing of the card's capabilities is left out: the list of what is not modelled is stale")
	}
	t.Logf("%d commands; %d times a capability of the card was not claimed:", len(all), unclaimed)
	for _, n := range notModelled {
		t.Logf("  type %d at %v: %s", n.kind, n.Field, n.why)
	}
}
