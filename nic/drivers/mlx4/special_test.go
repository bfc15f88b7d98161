package mlx4

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// After an interrupted send, the next one waits for it, and does not mistake its completion for its own.
func TestSendAfterAnInterruptedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var db, ci uint32
		completions := make([]uint64, gsiCQ*cqeSize/8)
		emptyCQ(unsafe.Pointer(&completions[0]), gsiCQ)
		blocks := make([]uint64, gsiBlocks*txbb/8)
		s := &subnet{halt: make(chan struct{})}
		g := &specialQP{d: &Device{subnet: s}, number: 1, sends: slowCQ{mem: unsafe.Pointer(&completions[0]), ci: &ci},
			sq: unsafe.Pointer(&blocks[0]), sent: make([]byte, ib.MADSize), db: &db}
		executed := 0
		execute := func() { // as the device does
			atomic.StoreUint64(&completions[executed*cqeSize/8+3], uint64(kindSend|wqeSend)<<cqeKind)
			executed++
		}
		posted := func(n uint32) bool { return *g.block(gsiSend * n)&swap(stamp) == swap(wqeSend) }

		close(s.halt)
		must.Equal(t, g.send(make([]byte, ib.MADSize), ib.Datagram{}), errStopped, "a send that is interrupted: %v")
		s.halt = make(chan struct{})
		var result error
		ended := false
		go func() {
			result = g.send(make([]byte, ib.MADSize), ib.Datagram{})
			ended = true
		}()
		second := func(when string, returned, isPosted bool) {
			time.Sleep(10 * commandLook)
			if synctest.Wait(); ended != returned || posted(1) != isPosted || result != nil {
				t.Fatalf("%s, the second has returned %v (%v), is posted: %v", when, ended, result, posted(1))
			}
		}
		second("with the first send under way", false, false)
		execute()
		second("with the first send done", false, true)
		execute()
		second("with both done", true, false)
	})
}

// Firmware gets a request of the subnet manager with where it came from. What is no request does not go there.
func TestRequestToFirmware(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{Port: 2}))(t)
	defer d.Close()
	var got []sent
	status := Status(0)
	s.answer = func(c sent) (Status, mailbox, uint64) {
		if c.op != opMADIFC {
			return card(c)
		}
		got = append(got, c)
		return status, make(mailbox, ib.MADSize), 0
	}
	n, from := &subnet{d: d}, cqe{remote: swap(0xA5<<24 | 3), source: swap(5<<28 | 0x1234)}
	request := ib.Query(ib.AttrPortInfo, 2, 7)
	must.OK(t, n.ask0(request, &from)) // what firmware says here is no answer
	status = 3
	check.Fails(t, "refused", n.ask0(request, &from), nil, "MAD_IFC")
	must.OK(t, n.ask0(make([]byte, ib.MADSize), &from))
	must.Equal(t, len(got), 2, "%d commands")
	check.Same(t, got[0].in[:ib.MADSize], request, "datagram % x")
	check.Same(t, got[0].in[ib.MADSize:][:16], mailbox{11: 3, 12: 5 << 4, 13: 0xA5, 15: 0}, "source % x")
	check.Equal(t, got[0].modifier, 0x1234<<16|2, "LID and port %#x")
	check.Equal(t, got[0].opMod, madFromWire, "opcode modifier %d")
	check.Equal(t, n.asked.Load(), 2, "%d requests")
}
