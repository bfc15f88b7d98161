package afpacket

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// TestNoHardwareStamps: an interface that lists hardware timestamps and does not know SIOCGHWTSTAMP has none, which is
// not an error. The loopback interface does not know it.
func TestNoHardwareStamps(t *testing.T) {
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	info := &unix.EthtoolTsInfo{So_timestamping: unix.SOF_TIMESTAMPING_RX_HARDWARE | unix.SOF_TIMESTAMPING_TX_HARDWARE,
		Tx_types: 1 << unix.HWTSTAMP_TX_ON, Rx_filters: 1 << unix.HWTSTAMP_FILTER_ALL}
	d := &Device{iface: &netif.Interface{}}
	d.iface.Name = "lo"
	var in nic.Timestamping
	check.OK(t, d.stampHardware(fd, info, &in))
	check.Equal(t, in, nic.Timestamping{}, "in force %+v")
}
