package mlx4sim

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/sim"
)

// A device is started, sends and receives frames of all sizes in each mode, and is shut down, without a violation.
func TestFrames(t *testing.T) {
	for _, wide := range []bool{false, true} {
		t.Run(fmt.Sprintf("wide=%v", wide), func(t *testing.T) {
			x := newRig(t, Options{})
			x.wide = wide
			x.open()
			posted := 0
			for n := 17; n <= 1500; n += 37 {
				f := toPeer(n)
				if n < 150 {
					x.wqe(opSend, sendFlags, inline(16, f))
				} else {
					x.wqe(opSend, sendFlags, x.data(128<<10, f[:n/2]), x.data(160<<10, f[n/2:]))
				}
				x.ring()
				got := x.Far.Recv(0)
				if want := append(f, make([]byte, max(0, 60-n))...); !bytes.Equal(got, want) {
					t.Fatalf("a frame of %d bytes arrives as %x", n, got)
				}
				if e := x.cqe(); e == nil || e[31]&0x7f != 0x40|opSend || w32(e, 0) != testQP {
					t.Fatalf("completion %x", e)
				}
				x.post(posted, 1)
				x.Arrive(frameOf(max(n, 60)))
				e := x.cqe()
				if e == nil || e[31]&0x7f != 1 || int(w32(e, 0x14)) != max(n, 60) || int(w32(e, 0x18)>>16) != posted {
					t.Fatalf("completion %x of a frame of %d bytes", e, n)
				}
				if got := x.fb.Bytes[2048*posted:][:max(n, 60)]; !bytes.Equal(got, frameOf(max(n, 60))) {
					t.Fatalf("received %x", got)
				}
				posted++
			}
			k := x.m.Counters()
			if k.TxFrames != uint64(posted) || k.RxFrames != uint64(posted) || k.Sent[testQP] != uint64(posted) ||
				k.Received[testQP] != uint64(posted) {
				t.Errorf("%+v after %d frames each way", k, posted)
			}
			x.down()
		})
	}
}

// tearing reads host memory like a copy that reads the last words first, so it sees concurrent stores in part.
type tearing struct {
	sim.Host
	from, to uint64
}

func (h tearing) DMARead(iova uint64, p []byte) error {
	err := h.Host.DMARead(iova, p)
	if iova >= h.from && iova < h.to {
		for line := 0; line+64 <= len(p); line += 64 {
			clear(p[line+56 : line+64])
		}
	}
	return err
}

func (h tearing) Peek(iova uint64, p []byte) error {
	return h.Host.(interface {
		Peek(iova uint64, p []byte) error
	}).Peek(iova, p)
}

// A WQE whose ownership bit was set while its other words were being read is read again: everything that the driver
// stored before the bit is then present, as in the cache lines that a card reads.
func TestTornWQE(t *testing.T) {
	x := openRig(t, Options{})
	x.m.host = tearing{x.m.host, x.sq.IOVA, x.sq.IOVA + 64<<testLogSQ}
	for range 20 {
		f := toPeer(140)
		x.send(opSend, sendFlags, inline(16, f))
		x.Sent(f, "a frame")
		x.cqe()
	}
}
