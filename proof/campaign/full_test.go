package campaign

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/proof/disk"
)

// The counts of a campaign are written to campaign.md completely or not at all, and are printed in any case. A log that
// could not be written is an error.
func TestFullDisk(t *testing.T) {
	small := disk.Small(t, 0)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	var out strings.Builder
	c := &campaign{options: options{out: small}, w: &out, steps: sanitize.NewWriter(io.Discard),
		models: sanitize.NewWriter(full)}
	c.report.init()
	io.WriteString(c.models, "x")
	err = c.save()
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(small, "campaign.md")) ||
		!strings.Contains(err.Error(), "/dev/full") || !strings.Contains(out.String(), "0 faults in 0 parts") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if left, _ := os.ReadDir(small); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
