package afxdp

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

func TestPollAllocates(t *testing.T) {
	veth.Allocates(t, func(o nic.Options) (*Device, error) { return Open(o, Options{}) },
		func(d *Device, r *fastpath.Responder) int { return d.queues[0].Poll(r) })
}

func TestChunk(t *testing.T) {
	for _, c := range []struct {
		driver  string
		n, want int
	}{
		{"ice", 1792, 2048}, {"ice", 1793, 4096}, {"ice", 3840, 4096}, {"ice", 3841, 0},
		{"ixgbe", 1024, 2048}, {"ixgbe", 1025, 4096}, {"ixgbe", 3072, 4096}, {"ixgbe", 3073, 0},
	} {
		if got, err := frameSize(c.n, bufferGrain(c.driver)); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %d bytes go into a chunk of %d, %v; want %d", c.driver, c.n, got, err, c.want)
		}
	}
}
