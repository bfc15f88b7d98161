package virtio_test

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// counted adds the frames that the device dropped for lack of a buffer, which only the device knows.
type counted struct {
	*virtio.Device
	m *virtiosim.Model
}

func (c counted) ReadStats(s *nic.Stats) error {
	err := c.Device.ReadStats(s)
	if err == nil && (!c.Info().NoDropCounter || s.RxDropped != 0) {
		err = fmt.Errorf("the driver claims that %d frames were dropped, and cannot know", s.RxDropped)
	}
	s.RxDropped = c.m.Missed()
	return err
}

func harness(packed, data bool) nictest.Harness {
	var m *virtiosim.Model
	return nictest.Harness{
		Model: func() sim.Model {
			m = virtiosim.New(virtiosim.Options{Packed: packed, NotificationData: data, Pairs: 16})
			return m
		},
		Open: func(fn pci.Function, o nic.Options) (nic.Device, error) {
			m.Forget()
			d, err := virtio.Open(fn, o)
			if err != nil {
				return nil, err
			}
			return counted{d, m}, nil
		},
		Poll: func(d nic.Device, q int, r *fastpath.Responder) int { return d.(counted).Queue(q).Poll(r) },
		Ring: 128, Queues: 4, Most: 16, MTU: 9000, WriteBack: 8,
		Queue: func(d nic.Device, q int) any { return d.(counted).Queue(q) }, Registers: []string{"rx.bell", "tx.bell"},
	}
}

func TestConformance(t *testing.T)       { nictest.Run(t, harness(false, false)) }
func TestConformancePacked(t *testing.T) { nictest.Run(t, harness(true, true)) }

func TestProgrammed(t *testing.T) {
	nictest.Programmed(t, harness(false, false), "testdata/split.txt")
	nictest.Programmed(t, harness(true, true), "testdata/packed.txt")
	nictest.Probed(t, harness(false, false), "testdata/probe.txt")
}
