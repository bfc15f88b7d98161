package ixgbe_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

const (
	ctrl, ctrlRST, ctrlLRST = 0x00000, 1 << 26, 1 << 3
	status                  = 0x00008
)

// spy is a model that reports accesses at forbidden times, and can vanish for some reads.
type spy struct {
	sim.Model
	resetting bool      // a reset was written, and its end not yet seen
	quiet     time.Time // no access is allowed until then (§4.6.3.2)
	touched   []uint64

	blink atomic.Int32 // number of reads that return all ones, after the next one of STATUS
	gone  int32
}

func (s *spy) ReadBAR(bar int, off uint64, p []byte) error {
	s.look(off)
	if off == status {
		s.gone = s.blink.Swap(0)
	} else if s.gone > 0 {
		s.gone--
		for i := range p {
			p[i] = 0xFF
		}
		return nil
	}
	err := s.Model.ReadBAR(bar, off, p)
	if v := uint32(p[0]) | uint32(p[3])<<24; off == ctrl && s.resetting && v&(ctrlRST|ctrlLRST) == 0 {
		s.resetting, s.quiet = false, time.Now().Add(9*time.Millisecond)
	}
	return err
}

func (s *spy) WriteBAR(bar int, off uint64, p []byte) error {
	s.look(off)
	if off == ctrl && p[3]&(ctrlRST>>24) != 0 {
		s.resetting = true
	}
	return s.Model.WriteBAR(bar, off, p)
}

func (s *spy) look(off uint64) {
	if time.Now().Before(s.quiet) {
		s.touched = append(s.touched, off)
	}
}

// No other process accesses the device during a restart, especially in the 10 ms after its reset.
func TestNobodyAsksDuringARestart(t *testing.T) {
	s := &spy{Model: ixgbesim.New(ixgbesim.Options{})}
	p, fn := host(t, s)
	d := must.Get(ixgbe.Open(fn, nic.Options{MAC: mac, RingSize: 128}))(t)
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() { // keeps the watch awake
		for buf := make([]byte, 2048); !stop.Load(); {
			if _, _, err := d.Recv(buf); err != nil {
				t.Errorf("Recv: %v", err)
				return
			}
		}
	})
	for range 2 {
		all.Go(func() {
			var st nic.Stats
			for !stop.Load() {
				if _, err := d.Link(); err != nil {
					t.Errorf("Link: %v", err)
				}
				if err := d.ReadStats(&st); err != nil {
					t.Errorf("ReadStats: %v", err)
				}
				runtime.Gosched()
			}
		})
	}
	w := must.Get(fn.BAR(0))(t)
	var st nic.Stats
	for n := range uint64(3) {
		w.Write32(0x03000, 0) // RXCTRL.RXEN, as a reset by another process leaves it
		if !await.Holds(func() bool {
			check.OK(t, d.ReadStats(&st))
			return st.Resets > n || t.Failed()
		}) {
			t.Errorf("no restart %d", n+1)
		}
		must.Get(d.Link())(t) // after the restart
	}
	stop.Store(true)
	all.Wait()
	must.Close(t, d)
	p.Stop()
	if len(s.touched) > 0 {
		t.Errorf("%d accesses within 10 ms after a reset, the first of register %#05x", len(s.touched), s.touched[0])
	}
}

// A device that is gone for a moment right after it was checked does not change the totals.
func TestAllOnesDoNotCount(t *testing.T) {
	for _, reads := range []int32{1, 2, 3, 4, 5, 7, 15, 30} {
		s := &spy{Model: ixgbesim.New(ixgbesim.Options{})}
		_, fn := host(t, s)
		d := open(t, fn, nic.Options{RingSize: 128})
		s.blink.Store(reads)
		var st nic.Stats
		d.ReadStats(&st) // may report it
		must.OK(t, d.ReadStats(&st))
		if n := st.RxFrames | st.RxBytes | st.TxFrames | st.TxBytes | st.RxDropped | st.RxErrors; n != 0 {
			t.Errorf("gone for %d reads: %+v", reads, st)
		}
	}
}

// miscount is a device whose GPRC includes frames that found no room in the packet buffer, according to an erratum of
// the 82599.
type miscount struct {
	*ixgbesim.Model
	armed atomic.Bool
	left  map[uint64]bool
}

func (m *miscount) ReadBAR(bar int, off uint64, p []byte) error {
	n := map[uint64]uint32{0x4074: 10, 0x3fa0: 3}[off]
	// they clear when they are read
	if err := m.Model.ReadBAR(bar, off, p); err != nil || !m.armed.Load() || n == 0 || m.left[off] {
		return err
	}
	p[0] = byte(n)
	m.left[off] = true
	return nil
}

func TestMissedAreNotReceived(t *testing.T) {
	m := &miscount{Model: ixgbesim.New(ixgbesim.Options{}), left: map[uint64]bool{}}
	_, fn := host(t, m)
	d := open(t, fn, nic.Options{RingSize: 128})
	m.armed.Store(true)
	var st nic.Stats
	must.OK(t, d.ReadStats(&st))
	if st.RxFrames != 7 || st.RxDropped != 3 {
		t.Errorf("GPRC 10 and MPC 3 are %d frames received and %d dropped, expected 7 and 3", st.RxFrames, st.RxDropped)
	}
}

// speeds is a device whose LINKS says that the link is up, with any code of a speed.
type speeds struct {
	sim.Model
	code byte
	on   atomic.Bool
}

func (s *speeds) ReadBAR(bar int, off uint64, p []byte) error {
	err := s.Model.ReadBAR(bar, off, p)
	if s.on.Load() && off == 0x42a4 {
		p[3] = p[3]&^0x30 | 0x40 | s.code<<4
	}
	return err
}

// TestSpeedOfTheLink: a reserved code is no known speed.
func TestSpeedOfTheLink(t *testing.T) {
	for code, want := range []int{0, 100, 1000, 10000} {
		s := &speeds{Model: ixgbesim.New(ixgbesim.Options{}), code: byte(code)}
		p, fn := host(t, s)
		d := open(t, fn, nic.Options{RingSize: 128})
		wire(p)
		awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
		s.on.Store(true)
		check.Equal(t, must.Get(d.Link())(t), nic.Link{Up: true, Speed: want}, "%+v")
	}
}
