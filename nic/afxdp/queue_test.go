package afxdp

import (
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/nictest/veth"
)

func TestPollAllocates(t *testing.T) {
	v := veth.New(t)
	var d *Device
	var err error
	v.Host.Do(func() { d, err = Open(nic.Options{Device: v.Host.Name, Match: v.Config()}) })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := fastpath.New(*v.Config())
	if err != nil {
		t.Fatal(err)
	}
	raw, f, q := v.Peer.Raw(t), v.Echo(veth.Our4.Addr(), 1), d.queues[0]
	if n := testing.AllocsPerRun(500, func() {
		raw.Send(f)
		for q.Poll(r) == 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations for each reply", n)
	}
}
