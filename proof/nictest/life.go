package nictest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
)

// checkLink: the link goes down and up again, the driver reports it, and frames flow again.
func checkLink(x *rig) {
	x.open(1)
	defer x.close()
	for range 4 {
		if l := x.link(); !l.Up || l.Speed <= 0 {
			x.Fatalf("link is %+v with the cable plugged in", l)
		}
		x.exchange(x.requests(x.h.Ring/4, 100))
		x.send(x.requests(x.h.Ring/4, 100)...) // in flight when the cable is unplugged
		x.port.Step()
		x.far.SetUp(false)
		x.settle()
		if l := x.link(); l.Up {
			x.Fatalf("link is %+v with the cable pulled", l)
		}
		x.far.SetUp(true)
		x.settle()
		if l := x.link(); !l.Up { // a driver may use the call to bring the link up
			x.port.Settle(100000)
		}
		x.settle()
		x.received()
	}
	if l := x.link(); !l.Up {
		x.Fatalf("link is %+v with the cable plugged in again", l)
	}
	x.exchange(x.requests(x.h.Ring/2, 100))
}

// checkReset: the device loses all its state under traffic. The driver restarts it or reports an error. After Close and
// Open it works.
func checkReset(x *rig) {
	x.open(1)
	x.exchange(x.requests(x.h.Ring/2, 100))
	x.send(x.requests(x.h.Ring/2, 100)...)
	x.port.Step()
	x.busy("reset", func() { must.OK(x, x.reset()) })
	said := false
	x.busy("Recv after a reset", func() { // each call lets the driver's watchdog restart the device
		buf := make([]byte, 16384)
		for end := time.Now().Add(linger); time.Now().Before(end) && !said; {
			time.Sleep(kit.Every + kit.Every/2)
			var s nic.Stats
			_, _, err := x.dev.Recv(buf)
			serr := x.dev.ReadStats(&s)
			l, lerr := x.dev.Link()
			said = err != nil || serr != nil || lerr != nil || !l.Up || s.Resets > 0
		}
	})
	if !said {
		x.Errorf("the device was reset, and neither Recv nor Link nor ReadStats reports it")
	}
	// What the driver does to a device that has lost its state is not a violation.
	x.port.ForgetViolations()
	x.close()
	x.received()
	x.works()
}

// restarted notes when the watchdog last said that it has restarted the device, while all loops are still parked.
type restarted struct{ at atomic.Uint64 }

func (r *restarted) Enabled(context.Context, slog.Level) bool { return true }
func (r *restarted) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *restarted) WithGroup(string) slog.Handler            { return r }
func (r *restarted) Handle(_ context.Context, e slog.Record) error {
	if strings.HasPrefix(e.Message, "the device was restarted") {
		r.at.Store(polling.TSC())
	}
	return nil
}

// checkResetServing: Serve parks while its device is restarted, and answers again, or returns an error. The time while
// it is parked is no polling gap.
func checkResetServing(x *rig) {
	var log restarted
	x.log = &log
	x.open(1)
	loop := &x.resp[0].Loop
	loop.Keep = 1
	x.busy("Serve after a reset", func() {
		ended, wait := x.serve()
		if err := x.reset(); err != nil {
			x.Error(err)
		}
		ok := await.Holds(func() bool {
			x.send(x.requests(1, 100)...)
			var s nic.Stats
			err := x.dev.ReadStats(&s) // the error may be caused by the reset, before the watchdog has detected it
			return ended() || err == nil && s.Resets > 0 && len(x.received()) > 0
		})
		if wait(); !ok {
			x.Errorf("the device was reset, and Serve neither ends nor answers again")
		}
	})
	loop.Long.After(new(polling.Read), func(from, to uint64) {
		if at := log.at.Load(); from < at && at < to {
			x.Errorf("an iteration of %d ticks includes a restart", to-from)
		}
	})
	x.port.ForgetViolations() // a device that was reset sees unexpected accesses
	x.close()
}

// holdings are the resources that a driver may leak.
type holdings struct{ goroutines, fds, memory int }

func (h holdings) exceeds(o holdings) bool {
	return h.goroutines > o.goroutines || h.fds > o.fds || h.memory > o.memory
}

func held(x *rig) holdings {
	fds := must.Get(os.ReadDir("/proc/self/fd"))(x)
	maps := must.Get(os.ReadFile("/proc/self/maps"))(x)
	return holdings{runtime.NumGoroutine(), len(fds), strings.Count(string(maps),
		"/memfd:") + strings.Count(string(maps), "/anon_hugepage")}
}

// holdsNoMore fails if the process holds more than before, after a moment that a stopping goroutine may need, or the
// other side of vfio-user. left are holdings of the device that must end too.
func (x *rig) holdsNoMore(before holdings, left ...func() bool) {
	x.Helper()
	var now holdings
	still := func() bool {
		now = held(x)
		return now.exceeds(before) || slices.ContainsFunc(left, func(f func() bool) bool { return f() })
	}
	for end := time.Now().Add(linger); still() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if now.exceeds(before) {
		x.Errorf("held before: %+v, after: %+v", before, now)
	}
}

// released fails if the driver still holds anything of the device, or more of the process's resources than before.
func (x *rig) released(before holdings) {
	x.Helper()
	x.holdsNoMore(before, func() bool {
		return x.port.Mappings() > x.mappings || x.port.BusMaster() &&
			x.kernel == nil
	})
	if n := x.port.Mappings() - x.mappings; n > 0 {
		x.Errorf("%d DMA mappings are left", n)
	}
	if x.port.BusMaster() != (x.kernel != nil) {
		x.Errorf("bus mastering is %v", x.port.BusMaster())
	}
	if x.kernel != nil {
		x.busy("count objects", func() {
			if n := x.kernel.Left(); n != 0 {
				x.Errorf("%d objects are left", n)
			}
		})
	}
}

// opened opens and closes the driver, and returns what the process holds then: the first Open may allocate things that
// the process keeps, such as a cached file or a thread of the runtime.
func (x *rig) opened(queues int) holdings {
	x.open(queues)
	x.close()
	return held(x)
}

// works opens the driver, which has to answer, and closes it.
func (x *rig) works() {
	x.Helper()
	x.open(1)
	x.exchange(x.requests(x.h.Ring/2, 100))
	x.close()
}

// interrupted opens the driver, which answers, and then steps once with more requests under way.
func (x *rig) interrupted(queues int) {
	x.open(queues)
	x.exchange(x.requests(x.h.Ring/4, 100))
	x.send(x.requests(x.h.Ring/4, 100)...)
	x.port.Step()
}

// opening opens the driver on a device that spoil has broken, and repair repairs afterwards. after judges Open's
// error, or ends the driver if there is none. The driver leaves nothing behind.
func (x *rig) opening(before holdings, spoil, repair func(), after func(err error)) {
	x.Helper()
	x.startKernel()
	spoil()
	after(x.tryOpen(1))
	x.removeKernel()
	repair()
	x.released(before)
}

// checkClose: a driver that is closed under traffic releases everything, and the function can be opened again.
func checkClose(x *rig) {
	before := x.opened(x.h.Queues)
	for range 5 {
		x.interrupted(x.h.Queues)
		x.poll()
		x.close()
		x.released(before)
		x.settleDevice()
		x.received()
	}
}

func (x *rig) settleDevice() { x.port.Settle(100000) }

// checkKilled: the driver's process dies without cleanup, and the next one can use the function.
func checkKilled(x *rig) {
	for range 3 {
		x.interrupted(1)
		x.kill()
		dead := x.dev
		defer dead.Close() // ends its goroutines, which a real kill would have ended
		x.dev = nil
		x.settleDevice()
		x.received()
	}
	x.works()
}

// checkRemovedOpening: the device disappears after some accesses of Open.
func checkRemovedOpening(x *rig) {
	before := x.opened(1)
	for _, n := range []int{0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233} {
		x.opening(before, func() { x.port.UnplugAfter(n) }, func() { x.port.UnplugAfter(-1) }, func(err error) {
			if err == nil { // Open needed fewer accesses: checkRemoved tests the rest
				x.close()
			} else if !errors.Is(err, nic.ErrGone) {
				x.Errorf("Open of a device that is gone after %d accesses: %v", n, err)
			}
		})
		if x.Failed() {
			return
		}
	}
	x.works()
}

// checkRemoved: the device disappears under traffic.
func checkRemoved(x *rig) {
	before := x.opened(1)
	x.open(1)
	x.exchange(x.requests(x.h.Ring/2, 100))
	x.send(x.requests(x.h.Ring/4, 100)...)
	x.port.Settle(10)
	x.port.Unplug()
	x.busy("Poll of a device that is gone", func() {
		for range 1000 {
			x.poll()
		}
	})
	x.removeKernel()
	fails := func(what string, call func() error) {
		x.busy(what+" of a device that is gone", func() {
			err := call()
			if x.h.Beside != nil { // the driver's watchdog learns of it from the kernel
				for end := time.Now().Add(linger); !errors.Is(err, nic.ErrGone) &&
					time.Now().Before(end); err = call() {
					time.Sleep(kit.Every)
				}
			}
			if !errors.Is(err, nic.ErrGone) {
				x.Errorf("%s of a device that is gone: %v", what, err)
			}
		})
	}
	fails("Link", func() error {
		_, err := x.dev.Link()
		return err
	})
	fails("ReadStats", func() error { return x.dev.ReadStats(new(nic.Stats)) })
	x.busy("Serve of a device that is gone", func() {
		x.serveBriefly()
	})
	x.busy("Close of a device that is gone", func() { x.dev.Close() }) // it may return an error
	x.released(before)
	x.port.UnplugAfter(-1)
}

// checkFlips: write-backs arrive with a bit flipped. Frames may be lost, and the ring may stall, but the driver must
// not crash, or do anything that the model reports, such as posting an impossible length; it can be closed and then
// works again.
func checkFlips(x *rig) {
	for range 8 {
		x.open(1)
		x.model.FlipWriteBacks(5, x.h.WriteBack)
		for range 40 {
			x.send(x.requests(x.h.Ring/8, 70)...)
			x.settle()
		}
		x.model.FlipWriteBacks(0, 0)
		x.close()
		x.settleDevice()
		x.received()
	}
	if x.model.Flipped() == 0 {
		x.Errorf("no write-back was flipped: is Harness.WriteBack right?")
	}
	x.works()
}

// checkStalledOpening: a device that replies to reads but does nothing causes an error in bounded time.
func checkStalledOpening(x *rig) {
	repair := func() {
		x.model.Stalled = false
		x.port.ForgetViolations()
	}
	x.opening(x.opened(1), func() { x.model.Stalled = true }, repair, func(err error) {
		if err == nil {
			x.Errorf("Open of a device that does nothing succeeds")
			x.close()
		} else if !errors.Is(err, nic.ErrTimeout) && !errors.Is(err, nic.ErrHardware) && !errors.Is(err, nic.ErrGone) {
			x.Errorf("Open of a device that does nothing: %v", err)
		}
	})
	x.works()
}

// checkStalled: a device that stops under traffic makes no call hang.
func checkStalled(x *rig) {
	before := x.opened(1)
	x.open(1)
	x.exchange(x.requests(x.h.Ring/2, 100))
	x.model.Stalled = true
	f := x.outgoing(100)
	var err error
	for range 4 * x.h.Ring {
		if err = x.dev.Send(f); err != nil {
			break
		}
		x.port.Step()
	}
	if err == nil {
		x.Errorf("a device that does nothing takes frames without end")
	}
	x.busy("Serve of a device that does nothing", func() {
		x.serveBriefly()
	})
	x.busy("Close of a device that does nothing", func() { x.dev.Close() })
	x.removeKernel()
	x.port.ForgetViolations()
	x.released(before)
	x.model.Stalled = false
	x.port.Reset()
	x.works()
}

// checkLostWrite: one register write of Open is lost. Open may fail, or the device may not work, but nothing hangs or
// leaks, and the next Open works.
func checkLostWrite(x *rig) {
	writes := 0
	x.model.LoseWrite = func(int, uint64, []byte) bool { writes++; return false }
	before := x.opened(1)
	all := writes
	for i := range 6 {
		at := i * all / 6
		x.opening(before, func() { x.model.LoseWrite = func(int, uint64, []byte) bool { at--; return at == -1 } },
			x.port.ForgetViolations, func(err error) {
				if err == nil { // a ring whose base address was lost is at the wrong address, which the IOMMU catches
					x.send(x.requests(x.h.Ring/4, 100)...)
					x.port.Settle(1000)
					x.busy("Close after a lost write", func() { x.dev.Close() })
				}
			})
		x.received()
	}
	x.model.LoseWrite = nil
	x.works()
}
