package kit

import (
	"testing"

	"github.com/rebound-nic/rebound/nic"
)

func counted(n uint64) nic.Stats {
	return nic.Stats{RxFrames: n, TxBytes: 10 * n, RxErrors: n, Extra: map[string]uint64{"bad": 3 * n}}
}

// Totals continue after resets that clear the device's counters, whether or not the counters could be read before the
// reset.
func TestTotals(t *testing.T) {
	var d Totals
	d.Start(counted(1000)) // counts of another driver
	check := func(what string, now, want uint64) {
		t.Helper()
		s := d.Read(counted(now))
		if s.RxFrames != want || s.TxBytes != 10*want || s.RxErrors != want || s.Extra["bad"] != 3*want {
			t.Errorf("%s: %+v, want %d", what, s, want)
		}
	}
	check("at the start", 1000, 0)
	check("later", 1007, 7)
	d.Keep(counted(1009))
	d.countReset("tx_hang")
	check("after a reset", 1, 10)
	d.KeepLast() // it counted more, and cannot say so
	d.countReset("gone_quiet")
	d.countReset("tx_hang")
	check("after one that tells nothing", 0, 10)
	check("and on", 5, 15)
	if s := d.Read(counted(5)); s.Resets != 3 || s.Extra["resets_tx_hang"] != 2 || s.Extra["resets_gone_quiet"] != 1 {
		t.Errorf("resets: %+v", s)
	}
}

func TestTotalsAdd(t *testing.T) {
	var d Totals
	for range 3 {
		d.Add(counted(2))
	}
	if s := d.Read(nic.Stats{}); s.RxFrames != 6 || s.TxBytes != 60 || s.Extra["bad"] != 18 {
		t.Errorf("%+v", s)
	}
	s := d.Read(nic.Stats{})
	s.Extra["mine"]++ // the caller's
	if d.Read(nic.Stats{}).Extra["mine"] != 0 {
		t.Error("the caller's map is the totals' own")
	}
}
