package sim_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/disk"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// A capture that fills the disk ends with a whole frame, and says so.
func TestFullCapture(t *testing.T) {
	small := disk.Small(t, 2)
	f := must.Get(os.Create(filepath.Join(small, "pcap")))(t)
	defer f.Close()
	wire, _ := sim.Pair()
	c := must.Get(sim.NewCapture(wire, f, sim.LinkEthernet))(t)
	frame := make([]byte, 1000)
	for range 20 {
		c.Send(0, frame)
	}
	info, err := f.Stat()
	if err != nil || info.Size() != 24+8*(16+1000) || !errors.Is(c.Err(), unix.ENOSPC) {
		t.Errorf("%d bytes, %v, %v", info.Size(), err, c.Err())
	}
}
