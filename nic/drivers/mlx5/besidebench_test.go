package mlx5_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// delivered sends a frame from the wire and returns who received it: "bench", "kernel", or "nobody".
func (x *besideRig) delivered(frame []byte) string {
	x.Helper()
	x.far.Send(0, frame)
	x.settle()
	buf := make([]byte, 2048)
	bench, _, err := x.dev.Recv(buf)
	if err != nil {
		x.Fatal(err)
	}
	kernel, _, err := x.kernel.Host().Recv(buf)
	if err != nil {
		x.Fatal(err)
	}
	switch {
	case bench == len(frame) && kernel == 0:
		return "bench"
	case bench == 0 && kernel == len(frame):
		return "kernel"
	case bench == 0 && kernel == 0:
		return "nobody"
	}
	x.Errorf("the bench received %d bytes, and the kernel %d, of %d", bench, kernel, len(frame))
	return "?"
}

// to6 returns an ICMPv6 message to an address.
func to6(dst netip.Addr, message ...byte) []byte {
	f := append([]byte{}, request(ourMAC, 98, -1)...)
	clear(f[12:])
	f[12], f[13], f[14], f[20], f[21] = 0x86, 0xDD, 0x60, 58, 64
	binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
	a := netip.MustParseAddr("fd00::1").As16()
	copy(f[22:], a[:])
	a = dst.As16()
	copy(f[38:], a[:])
	copy(f[54:], message)
	return f
}

// A bench receives the replies to its probes; everything else, replies to the kernel's own pings included, reaches the kernel.
func TestBesideBench(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	own6 := netip.MustParseAddr("fd00::2")
	from := func(f []byte, last byte) []byte {
		f[29] = last
		binary.BigEndian.PutUint16(f[24:], binary.BigEndian.Uint16(f[24:])+1-uint16(last))
		return f
	}
	if err := x.tryOpen(nic.Options{Steer: &nic.Steer{Local: netip.AddrFrom4(ours), Also: []netip.Addr{own6}, EchoIDs: []uint16{0x1234}, UDPPorts: []uint16{50000}}}); err != nil {
		t.Fatal(err)
	}
	x.settle()
	reply := func(id uint16) []byte { return to4(ourMAC, ours, 1, 0, 0, 0, 0, byte(id>>8), byte(id), 0, 1) }
	datagram := func(port uint16) []byte { return to4(ourMAC, ours, 17, 0, 7, byte(port>>8), byte(port)) }
	for _, c := range []struct {
		name, want string
		frame      []byte
	}{
		{"our reply", "bench", reply(0x1234)},
		{"the kernel's reply", "kernel", reply(0x1235)},
		{"a reply whose sequence number is our identifier", "kernel", to4(ourMAC, ours, 1, 0, 0, 0, 0, 0, 1, 0x12, 0x34)},
		{"a ping with our identifier", "kernel", to4(ourMAC, ours, 1, 8, 0, 0, 0, 0x12, 0x34, 0, 1)},
		{"an unreachable", "kernel", to4(ourMAC, ours, 1, 3, 3, 0, 0, 0x12, 0x34)},
		{"our datagram", "bench", datagram(50000)},
		{"another socket's datagram", "kernel", datagram(50001)},
		{"another address's datagram", "kernel", to4(ourMAC, others, 17, 0, 7, 0xC3, 0x50)},
		{"our reply over IPv6", "bench", to6(own6, 129, 0, 0, 0, 0x12, 0x34, 0, 1)},
		{"the kernel's reply over IPv6", "kernel", to6(own6, 129, 0, 0, 0, 0x12, 0x35, 0, 1)},
		{"an advertisement", "kernel", to6(own6, 136, 0, 0, 0, 0x12, 0x34, 0, 0)},
	} {
		if got := x.delivered(c.frame); got != c.want {
			t.Errorf("%s is for the %s, want %s", c.name, got, c.want)
		}
	}
	probe := to4(farMAC, others, 17, 0xC3, 0x50, 0, 7)
	must.OK(t, x.dev.Send(probe))
	x.settle()
	if sent := x.far.Recv(0); !bytes.Equal(sent, probe) {
		t.Errorf("sent %x, want %x", sent, probe)
	}
	x.close()
	if contexts, n := x.model.UserObjects(); contexts != 0 || n != 0 {
		t.Errorf("%d objects in %d contexts are left", n, contexts)
	}
	// With one target, the replies of others are not ours.
	if err := x.tryOpen(nic.Options{Steer: &nic.Steer{Local: netip.AddrFrom4(ours), Remote: netip.MustParseAddr("10.0.0.1"), EchoIDs: []uint16{0x1234}, UDPPorts: []uint16{50000}}}); err != nil {
		t.Fatal(err)
	}
	x.settle()
	for last, want := range map[byte]string{1: "bench", 9: "kernel"} {
		for _, f := range [][]byte{reply(0x1234), datagram(50000)} {
			if got := x.delivered(from(f, last)); got != want {
				t.Errorf("protocol %d from 10.0.0.%d is for the %s, want %s", f[23], last, got, want)
			}
		}
	}
	x.close()
}

// Without a parser for ICMP, a bench can probe with UDP only.
func TestBesideBenchRefuses(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5})
	steer := nic.Steer{Local: netip.AddrFrom4(ours), UDPPorts: []uint16{50000}}
	for says, change := range map[string]func(*nic.Options){
		"probe with UDP or STAMP":        func(o *nic.Options) { o.Steer.EchoIDs = []uint16{1} },
		"an address of the interface":    func(o *nic.Options) { o.Steer.Neighbours = true },
		"both Match and Steer":           func(o *nic.Options) { match := answers; o.Match = &match },
		"chosen frames only":             func(o *nic.Options) { o.Steer = nil },
		"nic.mac is for a function of o": func(o *nic.Options) { o.MAC = farMAC },
	} {
		s := steer
		o := nic.Options{Steer: &s}
		change(&o)
		if err := x.tryOpen(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		} else if (o.Match == nil && o.MAC == [6]byte{}) != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("unsupported is %v: %v", !errors.Is(err, errors.ErrUnsupported), err)
		}
	}
	if contexts, n := x.model.UserObjects(); contexts != 0 || n != 0 {
		t.Errorf("%d objects in %d contexts are left", n, contexts)
	}
	must.OK(t, x.tryOpen(nic.Options{Steer: &steer}))
	x.settle()
	if got := x.delivered(to4(ourMAC, ours, 17, 0, 7, 0xC3, 0x50)); got != "bench" {
		t.Errorf("a datagram is for the %s", got)
	}
	x.close()
}

// A process that is killed at any moment, while it opens the card or under traffic, leaves nothing on the card, which no longer writes to its
// memory, and the kernel receives everything again.
func TestBesideKilled(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	match := answers
	devrig.Killed(t, devrig.Process{
		Open:  func() error { return x.tryOpen(nic.Options{Match: &match}) },
		Calls: &x.kernel.Calls, DieAt: &x.kernel.DieAt,
		Begin: func() func(*rand.Rand) {
			r := must.Get(fastpath.New(match))(t)
			return func(rng *rand.Rand) {
				x.far.Send(0, to4(ourMAC, ours, 17, udp(7)...))
				x.far.Send(0, to4(ourMAC, ours, 17, udp(9)...))
				for range rng.IntN(4) {
					x.port.Step()
				}
				if rng.IntN(3) > 0 {
					x.dev.Queue(0).Poll(r)
				}
			}
		},
		Kill: func() { x.busy(x.kernel.Kill) },
		Dead: func(kill int, opened bool) {
			if contexts, n := x.model.UserObjects(); contexts != 0 || n != 0 {
				t.Fatalf("kill %d: %d objects in %d contexts are left", kill, n, contexts)
			}
			x.resp = nil
			devrig.Drain(t, x.port, x.far, x.kernel.Host())
			if got := x.reaches(to4(ourMAC, ours, 17, udp(7)...)); got != "kernel" {
				t.Fatalf("after kill %d a frame is for %s", kill, got)
			}
			if opened {
				x.busy(func() { x.dev.Close() })
			}
		},
	})
}
