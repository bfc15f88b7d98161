package nic

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/pci"
)

func TestLost(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, ErrGone: true, ErrNoDevice: true, pci.ErrGone: true, pci.ErrNoDevice: true,
		ErrDown: false, ErrHardware: false, ErrTimeout: false, ErrFull: false, ErrBusy: false,
	} {
		wrapped := err
		if err != nil {
			wrapped = errors.Join(errors.New("core 3"), fmt.Errorf("device: %w: STATUS reads all ones", err))
		}
		if Lost(wrapped) != want {
			t.Errorf("%v: lost is %v", wrapped, !want)
		}
	}
}
