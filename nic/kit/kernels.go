package kit

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// ComesBack is how long the kernel's driver may take to recover a device: mlx5_core waits up to a minute for the
// firmware. Tests replace it.
var ComesBack = 90 * time.Second

// AwaitKernel calls start, which opens a device beside the kernel's driver again, until it succeeds: while the driver
// resets the device or is loaded again, the device or its interface is missing, or its firmware executes nothing. It
// gives up after ComesBack, at Close, and on any other error.
func (c *Card) AwaitKernel(start func() error) error {
	for limit, first := NewDeadline(ComesBack, 10), true; ; first = false {
		late := limit.Over()
		err := start()
		if err == nil || late || !away(err) {
			return err
		}
		if first {
			c.Log.Info("the kernel's driver does not serve the device now: waiting for it", "for", ComesBack, "err",
				err)
		}
		select {
		case <-c.endWatch:
			return err
		case <-time.After(Every):
		}
	}
}

// away reports whether an error is that of a device that the kernel's driver resets.
func away(err error) bool {
	for _, e := range []error{nic.ErrNoDevice, nic.ErrGone, unix.EIO, unix.ENODEV, unix.ENXIO, nic.ErrTimeout} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
