package afpacket

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

func TestPollAllocates(t *testing.T) {
	veth.Allocates(t, Open, func(d *Device, r *fastpath.Responder) int { return d.queues[0].Poll(r) })
}

// partial returns an IPv4 datagram whose checksum field contains the pseudo-header's sum.
func partial(payload string) []byte {
	f := append(make([]byte, 12), 8, 0, 0x45, 0, 0, byte(28+len(payload)), 0, 0, 0, 0, 64, 17, 0, 0,
		192, 0, 2, 2, 192, 0, 2, 10, 0x30, 0x39, 0x1b, 0x5f, 0, byte(8+len(payload)), 0, 0)
	binary.BigEndian.PutUint16(f[40:], cksum.Sum(f[26:34], uint16(17+8+len(payload))))
	return append(f, payload...)
}

func TestComplete(t *testing.T) {
	for _, payload := range []string{"", "a", "ab", "odd length", "even length."} {
		for _, tags := range []string{"", "\x81\x00\x00\x07", "\x88\xa8\x00\x07\x81\x00\x00\x08"} {
			f := partial(payload)
			f = append(append(bytes.Clone(f[:12]), tags...), f[12:]...)
			complete(f)
			u := f[len(tags)+34:]
			pseudo := cksum.Sum(f[len(tags)+26:len(tags)+34], uint16(17+len(u)))
			if got := cksum.Sum(u, pseudo); got != 0xffff {
				t.Errorf("%q behind tags %q: sums to %#x", payload, tags, got)
			}
		}
	}
}

// FuzzComplete changes the checksum of a UDP datagram only, and nothing at all in other frames.
func FuzzComplete(f *testing.F) {
	f.Add(partial("payload"))
	f.Add(append(append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 9, 17, 64), make([]byte, 50)...))
	f.Add(append(make([]byte, 12), 0x81, 0, 0, 7, 0x81, 0, 0, 7, 8, 0, 0x4f))
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		complete(frame)
		first, last := -1, -1
		for i := range frame {
			if frame[i] != before[i] {
				if first < 0 {
					first = i
				}
				last = i
			}
		}
		if last-first > 1 || first >= 0 && first < 14+20+6 {
			t.Errorf("bytes %d to %d of % x changed", first, last, before)
		}
	})
}

// The kernel's refusals of a frame are the errors of package nic.
func TestSendErrors(t *testing.T) {
	d := &Device{iface: &netif.Interface{Name: "eth1"}}
	for e, want := range map[unix.Errno]error{unix.EAGAIN: nic.ErrFull, unix.ENOBUFS: nic.ErrFull,
		unix.EMSGSIZE: nic.ErrFrameSize, unix.ENETDOWN: nic.ErrDown, unix.ENXIO: nic.ErrGone, unix.ENODEV: nic.ErrGone,
		unix.EINVAL: unix.EINVAL} {
		check.Fails(t, e.Error(), d.sendError(e), want)
		q := &Queue{}
		q.failed(e)
		full := uint64(0)
		if want == nic.ErrFull {
			full = 1
		}
		check.Equal(t, [2]uint64{q.txFull.Load(), q.txErrors.Load()}, [2]uint64{full, 1 - full}, e.Error()+": %d")
	}
}
