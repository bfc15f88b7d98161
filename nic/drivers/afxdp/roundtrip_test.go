package afxdp_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/afpacket"
	"github.com/rebound-nic/rebound/nic/drivers/afxdp"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// TestRoundTrip prints the round trip of an ICMP echo over veth, of both socket drivers and of the kernel, alternating
// and with the same prober: medians and their ratio to the kernel's. It needs an idle machine with two cores, so it
// runs only on request:
//
//	REBOUND_MEASURE=1 go test -run RoundTrip -v ./nic/drivers/afxdp
func TestRoundTrip(t *testing.T) {
	if os.Getenv("REBOUND_MEASURE") == "" {
		t.Skip("a measurement: set REBOUND_MEASURE=1")
	}
	const rounds = 5
	open := map[string]func(nic.Options) (nic.Device, error){
		"afpacket": func(o nic.Options) (nic.Device, error) { return afpacket.Open(o) },
		"afxdp":    func(o nic.Options) (nic.Device, error) { return afxdp.Open(o, afxdp.Options{}) },
	}
	for _, prober := range []string{"afxdp", "afpacket"} {
		p50, p99 := map[string][]float64{}, map[string][]float64{}
		for range rounds {
			for _, responder := range []string{"kernel", "afpacket", "afxdp"} {
				v := veth.New(t)
				stop := func() {}
				to := v.Host.IPv4.Addr()
				if responder != "kernel" {
					to = netip.MustParseAddr("192.0.2.10")
					stop = respond(t, v, open[responder], to)
				}
				rtt := probe(t, v, open[prober], to)
				stop()
				if t.Failed() {
					t.FailNow()
				}
				p50[responder] = append(p50[responder], rtt[len(rtt)/2])
				p99[responder] = append(p99[responder], rtt[len(rtt)*99/100])
			}
		}
		var b strings.Builder
		for _, responder := range []string{"kernel", "afpacket", "afxdp"} {
			slices.Sort(p50[responder])
			slices.Sort(p99[responder])
			fmt.Fprintf(&b, "\n%-9s p50 %5.0f ns (%4.2f of kernel; rounds %.0f)  p99 %6.0f ns", responder, p50[responder][rounds/2],
				p50[responder][rounds/2]/p50["kernel"][rounds/2], p50[responder], p99[responder][rounds/2])
		}
		t.Logf("prober %s%s", prober, b.String())
	}
}

// respond serves the host's end on the second core until the returned function is called.
func respond(t *testing.T, v *veth.Pair, open func(nic.Options) (nic.Device, error), a netip.Addr) func() {
	c := fastpath.Config{MAC: [6]byte(v.Host.MAC), Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}}
	var d nic.Device
	var err error
	v.Host.Do(func() { d, err = open(nic.Options{Device: v.Host.Name, Match: &c}) })
	if err != nil {
		t.Fatal(err)
	}
	r := must.Get(fastpath.New(c))(t)
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		pin(1)
		done <- d.Serve(0, &stop, r)
	}()
	return func() {
		if t.Failed() {
			var st nic.Stats
			d.ReadStats(&st)
			t.Errorf("%s: %+v %+v", d.Info().Driver, st, r.Stats())
		}
		stop.Store(true)
		check.OK(t, <-done)
		d.Close()
	}
}

func pin(core int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	unix.SchedSetaffinity(0, &set)
}

func probe(t *testing.T, v *veth.Pair, open func(nic.Options) (nic.Device, error), to netip.Addr) (rtt []float64) {
	const warmup, count = 2000, 40000
	v.Peer.Do(func() {
		pin(0)
		d, err := open(nic.Options{Device: v.Peer.Name, Steer: &nic.Steer{
			Local: v.Peer.IPv4.Addr(), Remote: to, EchoIDs: []uint16{0x5262},
		}})
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		f, buf := make([]byte, 98), make([]byte, 2048)
		copy(f, v.Host.MAC)
		copy(f[6:], v.Peer.MAC)
		f[12], f[14], f[17], f[22], f[23] = 8, 0x45, 84, 64, 1
		copy(f[26:], v.Peer.IPv4.Addr().AsSlice())
		copy(f[30:], to.AsSlice())
		binary.BigEndian.PutUint16(f[24:], ^cksum.Sum(f[14:34], 0))
		f[34] = 8
		binary.BigEndian.PutUint16(f[38:], 0x5262)
		ticks := make([]uint64, 0, count)
		wall, from := time.Now(), polling.TSC()
		for seq := range uint16(warmup + count) {
			binary.BigEndian.PutUint16(f[40:], seq)
			f[36], f[37] = 0, 0
			binary.BigEndian.PutUint16(f[36:], ^cksum.Sum(f[34:], 0))
			start := polling.TSC()
			if err := d.Send(f); err != nil {
				t.Error(err)
				return
			}
			for polls := 0; ; polls++ { // not by time: another process may use the core for long
				n, at, err := d.Recv(buf)
				if err != nil || polls > 1<<27 {
					var st nic.Stats
					d.ReadStats(&st)
					t.Errorf("no reply from %v to request %d: %v; prober %+v", to, seq, err, st)
					return
				}
				if n == len(f) && buf[34] == 0 && binary.BigEndian.Uint16(buf[40:]) == seq {
					if seq >= warmup {
						ticks = append(ticks, uint64(at)-start)
					}
					break
				}
			}
		}
		ns := float64(time.Since(wall).Nanoseconds()) / float64(polling.TSC()-from)
		slices.Sort(ticks)
		for _, v := range ticks {
			rtt = append(rtt, float64(v)*ns)
		}
	})
	return rtt
}
