package virtio_test

import (
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/bus/pci"
	"rebound/nic/nictest"
	"rebound/nic/sim"
	"rebound/nic/sim/virtiosim"
	"rebound/nic/virtio"
)

// counted adds what the device dropped for want of a buffer, which only the device knows.
type counted struct {
	*virtio.Device
	m *virtiosim.Model
}

func (c counted) ReadStats(s *nic.Stats) error {
	err := c.Device.ReadStats(s)
	s.RxDropped = c.m.Missed()
	return err
}

func harness(packed, data bool) nictest.Harness {
	var m *virtiosim.Model
	return nictest.Harness{
		Model: func() sim.Model {
			m = virtiosim.New(virtiosim.Options{Packed: packed, NotificationData: data})
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
		Ring: 128, Queues: 4, MTU: 9000, WriteBack: 8,
	}
}

func TestConformance(t *testing.T)       { nictest.Run(t, harness(false, false)) }
func TestConformancePacked(t *testing.T) { nictest.Run(t, harness(true, true)) }
