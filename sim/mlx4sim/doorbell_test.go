package mlx4sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// Doorbells for objects that do not exist are refused.
func TestDoorbells(t *testing.T) {
	x := openRig(t, Options{})
	x.door(testUAR, 0x14, 99<<8)
	x.ExpectError("QP 0x63 is not the device's")
	x.door(testUAR, 0x14, testQP<<8|1)
	x.ExpectWarning("reserved bits")
	x.door(testUAR+1, 0x14, testQP<<8)
	x.ExpectError("no object has its doorbells there")
	x.door(testUAR, 0x18, 1)
	x.ExpectError("where nothing is")
	x.door(testEQ/4, 0x800+8, 0)
	x.ExpectError("EQ 0x21 is not the device's")
	x.door(testEQ/4, 0x800, 5)
	x.ExpectError("consumer counter 0x5")
	x.arm(1, 2, 7)
	x.ExpectError("armed at consumer counter 0x7")
	x.arm(1, 5, 0)
	x.ExpectError("doorbell command 5")
	x.arm(1, 2, 0)
	binary.BigEndian.PutUint32(x.rec.Bytes[68:], 0)
	x.armDoorbell(1, 2, 0)
	x.ExpectWarning("the arm record is 00000000")
}

// Arming a CQ that was destroyed is only a warning: a driver may still be doing it on another processor.
func TestArmAfterDestroy(t *testing.T) {
	x := openRig(t, Options{})
	x.do(0x016, 0, testCQ+1, x.cqContext(), false)
	x.do(0x017, 0, testCQ+1, nil, true)
	arm := func(cqn uint32) { x.Must(x.Port.WriteBAR(2, testUAR*4096+0x20, dwords(8, 0, 2<<24|cqn))) }
	arm(testCQ + 1)
	x.ExpectWarning("was destroyed")
	arm(testCQ + 2)
	x.ExpectError("CQ 0x82 is not the device's")
}

// An arm in flight while the device read a newer consumer counter, and one after which the driver has already armed
// again.
func TestArmOnItsWay(t *testing.T) {
	x := openRig(t, Options{})
	for range 1 << testLogCQ {
		x.sendFrame()
	}
	binary.BigEndian.PutUint32(x.rec.Bytes[64:], 1<<testLogCQ)
	x.sendFrame() // the device sees no free entry, so it reads the record
	x.Clean()
	x.arm(1, 2, 20)
	x.Clean()
	x.arm(1, 2, 1<<testLogCQ+2)
	x.ExpectError("armed at consumer counter 0x22")
	x.arm(2, 2, 1<<testLogCQ) // the first event has been raised
	x.Clean()
	x.arm(2, 2, 20) // the doorbells themselves arrive in order
	x.ExpectError("armed at consumer counter 0x14")
	binary.BigEndian.PutUint32(x.rec.Bytes[68:], 2<<28|2<<24|1<<testLogCQ+1)
	x.armDoorbell(2, 2, 1<<testLogCQ)
}

// A send doorbell arrives while the device still executes prefetched WQEs: those that are valid by then are sent.
func TestDoorbellBehindBurst(t *testing.T) {
	x := openRig(t, Options{})
	send := func(n int) {
		for range n {
			x.wqe(opSend, sendFlags&^(3<<2), x.data(0, toPeer(64)))
		}
		x.door(testUAR, 0x14, testQP<<8)
	}
	send(1) // so that the fetched part does not end where a burst ends
	x.Port.Settle(20)
	send(1 << testLogSQ)
	x.Port.Step()
	send(1)
	x.Port.Settle(20)
	sent := 0
	for ; x.Far.Recv(0) != nil; sent++ {
	}
	check.Equal(t, sent, 2+1<<testLogSQ, "%d frames were sent")
}

func TestDoorbellBeforeCommand(t *testing.T) {
	x := openRig(t, Options{})
	x.wqe(opSend, sendFlags&^(3<<2), x.data(0, toPeer(64)))
	binary.BigEndian.PutUint32(x.m.host.Shadow(2)[testUAR*4096+0x14:], testQP<<8)
	x.do(0x021, 3, testQP, nil, false)
}
