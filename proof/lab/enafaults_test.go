package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/enasim"
)

// enaFaults has the faults that the Linux driver must survive. Each "say" of a fault turns it on before the guest
// continues.
const enaFaults = helpers + `
bring ena
need arp -s $peer 02:00:00:00:ee:01
stat() { ethtool -S eth0 | sed -n "s/^ *$1: //p"; }
logged() { dmesg | grep -q "$1"; }
back() { until_true 200 grep -q 1 /sys/class/net/eth0/carrier; pings 50 56; }
say pushes
pings 100 54
say pushed
need ethtool -G eth0 tx-push-buf-len 224
up
say wide
pings 100 182
say widened
need ethtool -X eth0 equal 1
say one
floods $peer:7 500 1472 # small ones overflow the socket, which counts bytes of memory
say oned
need ethtool -X eth0 default
say silent
until_true 150 logged "Keep alive watchdog timeout"
say speaking
back
say stuck
/bin/ping -c 3 -i 0.2 -W 1 $peer >/dev/null
stuck() { logged "TX hasn't completed\|missing TX completions\|lost tx completions\|Lost TX completions"; }
until_true 150 stuck
say unstuck
back
say wrongtx
/bin/ping -c 1 -W 1 $peer >/dev/null
say wrongtx-done
back
say wrongrx
/bin/ping -c 1 -W 1 $peer >/dev/null
say wrongrx-done
back
say admin
ethtool -S eth0 >/dev/null 2>&1
say admin-done
back
say unplug
until_true 50 grep -q 0 /sys/class/net/eth0/carrier
say plug
back
say events
pings 10 56
say evented
echo devices >/sys/power/pm_test || fail no pm_test
echo freeze >/sys/power/state || fail freeze
back
[ "$(stat suspend)$(stat resume)" = 11 ] || fail "suspend $(stat suspend), resume $(stat resume)"
say resumed
need rmmod ena
say unloaded
`

// Reset reasons used by the Linux driver, ena_regs_reset_reason_types.
const (
	resetKeepAlive = 1
	resetAdmin     = 2
	resetMissTX    = 3
	resetRxID      = 4
	resetTxID      = 5
)

// TestLabFaults has the Linux driver reset the model and recover from each fault: "go test ./proof/lab -run
// LabFaults/ena -v".
func TestLabFaults(t *testing.T) {
	guests(t)
	beside(t, "ena/F2", f2faultsENA)
	// Accelerated LLQ, registers read by MMIO only, everything out of order or late that may be, and frames that start
	// at an offset.
	odd := *enaCard
	odd.model = func(mac [6]byte) sim.Model {
		return catalogue.ENAWithAllowance(mac, enasim.Options{Device: 0xec21, NoMeta: true, Burst: 512,
			NoReadless: true, RxOffset: 2,
			AdminOutOfOrder: true, AdminDelay: time.Millisecond, TxOutOfOrder: true, RxOutOfOrder: true})
	}
	beside(t, "ena/odd", odd.f2)
}

func f2faultsENA(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	// Longer than a busy machine may delay the model, because otherwise Linux resets it without a fault. Two faults
	// hold completions back; the shorter limit belongs to the one under test.
	hints := enasim.Hints{Watchdog: 15000, MissingTx: 4000, MissingTxCount: 1, NetdevWatchdog: 60000}
	f := s.serve(enaCard, near, func(mac [6]byte) sim.Model {
		return enasim.New(enasim.Options{MAC: mac, Hints: hints, Device: 0x1ec2})
	})
	m := f.model.(*enasim.Model)
	p := newPeer(far)
	defer p.close()
	var before enasim.Counters
	// resets waits for a reset. When the model sees it, the driver has already turned the carrier off.
	resets := func(reason int) error {
		if !await.Holds(func() bool { return slices.Contains(m.Resets(), reason) }) {
			return fmt.Errorf("no reset for reason %d, but for %v", reason, m.Resets())
		}
		return nil
	}
	read := func(what string) error {
		k := m.Counters()
		if n := k.TxPayloadReads - before.TxPayloadReads; n != 0 || k.TxDescReads != 0 ||
			k.TxFrames-before.TxFrames < 100 {
			return fmt.Errorf("%s: %d frames were sent with %d payload reads and %d descriptor reads", what,
				k.TxFrames-before.TxFrames, n, k.TxDescReads)
		}
		return nil
	}
	_, err := s.play(Machine{
		Limit: 150 * time.Second, Files: s.programs("flood"), Script: "peer=10.9.0.1\n" + enaFaults,
		Say: func(key, _ string, _ Result) error {
			switch key {
			case "pushes", "wide", "one":
				before = m.Counters()
			case "pushed":
				return read("frames of 96 bytes")
			case "widened":
				return read("frames of 224 bytes")
			case "oned":
				if k := m.Counters(); k.RxQueue[1] != before.RxQueue[1] || k.RxQueue[0]-before.RxQueue[0] < 500 {
					return fmt.Errorf("with one receive queue: %v, before %v", k.RxQueue[:2], before.RxQueue[:2])
				}
			case "silent":
				m.WithholdKeepAlive(true)
			case "speaking":
				m.WithholdKeepAlive(false)
				return resets(resetKeepAlive)
			case "stuck":
				m.HoldCompletions(true)
			case "unstuck":
				// while they are held: the driver needs two late completions for a reset, and logs one of them
				err := resets(resetMissTX)
				m.HoldCompletions(false)
				return err
			case "wrongtx":
				m.TamperCompletion(true, func(b []byte) { binary.LittleEndian.PutUint16(b, 0xfff0) })
			case "wrongtx-done":
				return resets(resetTxID)
			case "wrongrx":
				m.TamperCompletion(false, func(b []byte) { binary.LittleEndian.PutUint16(b[6:], 0xfff0) })
			case "wrongrx-done":
				return resets(resetRxID)
			case "admin":
				// Only the next command, and not held: the reset's are answered, and Linux's ena stores a late
				// completion into a stack frame that is gone.
				next := 0
				m.IgnoreAdmin(func(string) bool { next++; return next == 1 })
			case "admin-done":
				return resets(resetAdmin)
			case "unplug":
				far.SetUp(false)
			case "plug":
				far.SetUp(true)
			case "events":
				before = m.Counters()
				m.Post(amazon.Event{Group: amazon.GroupWarning})
				m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifySuspend})
				m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifyResume})
				m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifyUpdateHints})
				m.Post(amazon.Event{Group: 9})
			case "evented":
				if !await.Holds(func() bool { return m.Counters().Events-before.Events >= 5 }) {
					return fmt.Errorf("%d events of 5 were taken", m.Counters().Events-before.Events)
				}
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.wrong) > 0 {
				return errors.New("the wire's far end got a broken frame: " + p.wrong[0])
			}
			return nil
		},
	})
	t.Logf("resets: %v, counters: %+v", m.Resets(), m.Counters())
	must.OK(t, err)
}
