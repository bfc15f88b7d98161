package afxdp

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

func TestPollAllocates(t *testing.T) {
	v := veth.New(t)
	var d *Device
	var err error
	v.Host.Do(func() { d, err = Open(nic.Options{Device: v.Host.Name, Match: v.Config()}, Options{}) })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := must.Get(fastpath.New(*v.Config()))(t)
	raw, f, q := v.Peer.Raw(t), v.Echo(veth.Our4.Addr(), 1), d.queues[0]
	if n := testing.AllocsPerRun(500, func() {
		raw.Send(f)
		for q.Poll(r) == 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations for each reply", n)
	}
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
