package responder

import (
	"bytes"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// The second process restores a card's timestamps when the first one is gone, and not before.
func TestStampingIsRestored(t *testing.T) {
	defer func(old func(string, *unix.HwTstampConfig) error) { setStamping = old }(setStamping)
	for _, c := range []struct {
		name      string
		fails     error
		wantError bool
	}{{"restored", nil, false}, {"the interface is gone", unix.ENODEV, false}, {"no right", unix.EPERM, true}} {
		t.Run(c.name, func(t *testing.T) {
			var set *unix.HwTstampConfig
			setStamping = func(iface string, to *unix.HwTstampConfig) error {
				if iface != "eth1" {
					t.Errorf("of %s, want of eth1", iface)
				}
				set = to
				return c.fails
			}
			in, first := io.Pipe()
			var ready bytes.Buffer
			ended := make(chan error)
			go func() { ended <- keepStamping([]string{"eth1", "0", "1", "12"}, &ready, in) }()
			if _, err := first.Write([]byte("x")); err != nil { // it reads, so it is ready
				t.Fatal(err)
			}
			if ready.String() != "." || set != nil {
				t.Errorf("it says %q, and set %+v while the first process runs", ready.String(), set)
			}
			first.Close()
			if err := <-ended; (err != nil) != c.wantError {
				t.Error(err)
			}
			if want := (unix.HwTstampConfig{Tx_type: 1, Rx_filter: 12}); set == nil || *set != want {
				t.Errorf("set %+v, want %+v", set, want)
			}
		})
	}
}
