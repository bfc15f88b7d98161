package simserve

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/disk"
	"github.com/rebound-nic/rebound/proof/must"
)

// If a trace does not fit on the disk, the run ends with exit code 1, the reason and the path, and an existing file is
// unchanged.
func TestFullTrace(t *testing.T) {
	small := disk.Small(t, 1000)
	trace := filepath.Join(small, "trace")
	s, a, _ := startPair(t, "-trace", trace)
	before := must.Get(os.ReadFile(trace))(t)
	x := openPort(t, a)
	x.send(frame)
	x.close()
	disk.Fill(t, small, 0)
	if code, said := s.stop(t), s.stderr.String(); code != 1 ||
		!strings.Contains(said, "-trace: "+trace+" is not written") ||
		!strings.Contains(said, "no space left on device") {
		t.Errorf("exit %d: %s", code, said)
	}
	after, err := os.ReadFile(trace)
	if left, _ := os.ReadDir(small); err != nil || !bytes.Equal(after, before) || len(left) != 2 {
		t.Errorf("a trace of %d bytes, %d before: %v; left %v", len(after), len(before), err, left)
	}
}

// An output file that cannot be written at the start ends the run, and so does a full standard output.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{pairOf(t, "-wire", "pcap:/dev/full"), pairOf(t, "-trace", "/dev/full"), {"version"},
		{"manual"}} {
		var stderr bytes.Buffer
		if code := run(args, full, &stderr, nil); code != 1 ||
			!strings.Contains(stderr.String(), "/dev/full: no space left on device") {
			t.Errorf("%q: exit %d: %s", args, code, &stderr)
		}
	}
}
