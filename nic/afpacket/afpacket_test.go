package afpacket

import (
	"net/netip"
	"os/exec"
	"sync/atomic"
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/nictest/veth"
)

var (
	our4 = netip.MustParsePrefix("192.0.2.10/24")
	our6 = netip.MustParsePrefix("2001:db8::10/64")
)

func config(v *veth.Pair) *fastpath.Config {
	return &fastpath.Config{MAC: [6]byte(v.Host.MAC), Addresses: []netip.Prefix{our4, our6}, UDPPorts: []uint16{7007}}
}

// serve opens the host's end and serves it until the test ends.
func serve(t *testing.T, v *veth.Pair, queues int) *Device {
	t.Helper()
	c := config(v)
	var d *Device
	var err error
	v.Host.Do(func() { d, err = Open(nic.Options{Device: v.Host.Name, Queues: queues, Match: c}) })
	if err != nil {
		t.Fatal(err)
	}
	stop, done := new(atomic.Bool), make(chan error, queues)
	for i := range queues {
		r, err := fastpath.New(*c)
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- d.Serve(i, stop, r) }()
	}
	t.Cleanup(func() {
		stop.Store(true)
		for range queues {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestPing(t *testing.T) {
	v := veth.New(t)
	d := serve(t, v, 1)
	for _, a := range []netip.Prefix{our4, our6} {
		var out []byte
		var err error
		v.Peer.Do(func() {
			out, err = exec.Command("ping", "-n", "-c", "5", "-i", "0.01", a.Addr().String()).CombinedOutput()
		})
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
	}
	var s nic.Stats
	t.Log(d.ReadStats(&s), s, d.Info())
}
