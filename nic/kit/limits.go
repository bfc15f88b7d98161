package kit

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/nic"
)

// Limits are a driver's limits for nic.Options, and its defaults. Limits that only the device knows are left open here,
// and checked by the driver later.
type Limits struct {
	Driver           string // "ixgbe"
	Ring             int    // descriptors in each ring where nothing is requested
	MinRing, MaxRing int
	MTU              int // bytes of layer 3 where nothing is requested; 0 leaves it to the driver
	MinMTU, MaxMTU   int
	Queues           int // queue pairs at most
}

// apply returns o with zero values replaced by the defaults, or an error that names the impossible value.
func (l Limits) apply(o nic.Options) (nic.Options, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RingSize == 0 {
		o.RingSize = l.Ring
	}
	if o.MTU == 0 {
		o.MTU = l.MTU
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	var err error
	switch {
	case o.Match != nil && o.Steer != nil:
		err = errors.New("both Match and Steer are set, want at most one of them")
	case o.RingSize < l.MinRing || o.RingSize > l.MaxRing || o.RingSize&(o.RingSize-1) != 0:
		err = fmt.Errorf("ring size %d is not a power of two within %d to %d", o.RingSize, l.MinRing, l.MaxRing)
	case o.MTU != 0 && (o.MTU < l.MinMTU || o.MTU > l.MaxMTU):
		err = fmt.Errorf("%w: MTU %d is not within %d to %d", nic.ErrFrameSize, o.MTU, l.MinMTU, l.MaxMTU)
	case o.Queues < 0 || o.Queues > l.Queues:
		err = fmt.Errorf("%d queue pairs requested, want 1 to %d", o.Queues, l.Queues)
	case o.MAC != [6]byte{}:
		err = CheckMAC(o.MAC)
	}
	return o, err
}

// CheckMAC refuses an address that no single station has.
func CheckMAC(mac [6]byte) error {
	if mac == [6]byte{} || mac[0]&1 != 0 {
		return fmt.Errorf("address %v is not a unicast address", net.HardwareAddr(mac[:]))
	}
	return nil
}

// CheckPush returns an error for a push mode other than auto, off and the driver's own, or for a negative maximum
// length. Both may be omitted.
func CheckPush(mode string, longest int, own ...string) error {
	modes := slices.Concat([]string{"auto"}, own, []string{"off"})
	if mode != "" && !slices.Contains(modes, mode) {
		return fmt.Errorf("push mode %q: want one of %s", mode, strings.Join(modes, ", "))
	}
	if longest < 0 {
		return fmt.Errorf("the longest frame to push is %d bytes, want 0 or more", longest)
	}
	return nil
}
