package kit

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
)

func counted(n uint64) nic.Stats {
	return nic.Stats{RxFrames: n, RxBytes: 2 * n, TxFrames: 3 * n, TxBytes: 4 * n, RxDropped: 5 * n, RxErrors: 6 * n,
		TxDropped: 7 * n, TxErrors: 8 * n, Extra: map[string]uint64{"bad": 9 * n}}
}

// Totals continue over restarts, whether these clear all of the device's counters, some or none.
func TestTotals(t *testing.T) {
	var d Totals
	d.Start(counted(1000)) // counts of another driver
	reads := func(what string, now, sum uint64) {
		t.Helper()
		s, want := d.Read(counted(now)), counted(sum)
		for name, n := range want.Extra {
			check.Equal(t, s.Extra[name], n, what+": "+name+" is %d")
		}
		s.Resets, s.Extra, want.Extra = 0, nil, nil
		check.Equal(t, fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", want), what+": %s")
	}
	reads("at the start", 1000, 0)
	reads("later", 1007, 7)
	reads("last", 1009, 9)
	d.restarted(counted(0))
	d.countReset("tx_hang")
	reads("after one that cleared them", 1, 10)
	reads("later", 4, 13)
	d.restarted(counted(4))
	d.countReset("gone_quiet")
	reads("after one that did not", 4, 13)
	some := counted(5)
	some.RxFrames, some.TxBytes = 0, 0
	d.restarted(some)
	d.countReset("tx_hang")
	if s := d.Read(some); s.RxFrames != 13 || s.TxBytes != 4*13 || s.RxErrors != 6*14 ||
		s.Extra["bad"] != 9*14 {
		t.Errorf("after one that cleared some: %+v", s)
	}
	if s := d.Read(some); s.Resets != 3 || s.Extra["resets_tx_hang"] != 2 || s.Extra["resets_gone_quiet"] != 1 {
		t.Errorf("resets: %+v", s)
	}
}

func TestTotalsAdd(t *testing.T) {
	var d Totals
	for range 3 {
		d.Add(counted(2))
	}
	if s := d.Read(nic.Stats{}); s.RxFrames != 6 || s.TxBytes != 24 || s.Extra["bad"] != 54 {
		t.Errorf("%+v", s)
	}
	s := d.Read(nic.Stats{})
	s.Extra["mine"]++ // the caller's
	if d.Read(nic.Stats{}).Extra["mine"] != 0 {
		t.Error("the caller's map is the totals' own")
	}
}

func TestWide(t *testing.T) {
	var w Wide
	for _, c := range []struct {
		now  uint32
		want uint64
	}{{0, 0}, {7, 7}, {1<<32 - 1, 1<<32 - 1}, {2, 1<<32 + 2}, {2, 1<<32 + 2}, {1, 2<<32 + 1}} {
		if got := w.Read(c.now); got != c.want {
			t.Errorf("%d is read as %d, want %d", c.now, got, c.want)
		}
	}
}
