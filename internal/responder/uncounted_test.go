package responder

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
)

// counting is a port that received and sent frames.
type counting struct {
	nic.Port
	nic.Stats
}

func (c counting) Link() (nic.Link, error) { return nic.Link{}, nil }

func (c counting) ReadStats(s *nic.Stats) error {
	*s = c.Stats
	return nil
}

// Bytes that a device does not count are left out, rather than 0.
func TestUncountedBytes(t *testing.T) {
	s := nic.Stats{RxFrames: 3, TxFrames: 2, RxBytes: 300, TxBytes: 200}
	for without, want := range map[bool]string{false: "received 3 (300 bytes), sent 2 (200 bytes)\n",
		true: "received 3, sent 2\n"} {
		i := nic.Info{NoByteCounter: without}
		var out strings.Builder
		printDevice(&out, i, counting{Stats: s})
		check.Contains(t, out.String(), want)
		r := &report.Report{}
		describe(r, i, counting{Stats: s})
		if _, has := r.Device.Counters["rx_bytes"]; has == without || r.Device.Counters["tx_frames"] != 2 {
			t.Errorf("counters: %v", r.Device.Counters)
		}
	}
}
