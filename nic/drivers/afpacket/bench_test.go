package afpacket_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/afpacket"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// Each option is checked, or has its effect.
func TestOptions(t *testing.T) {
	v := veth.New(t)
	forward := func(value string) {
		v.Host.Do(func() {
			check.OK(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+v.Host.Name+"/forwarding", []byte(value), 0))
		})
	}
	for _, c := range []struct {
		o    nic.Options
		err  error
		says string // in the error, or of the device
	}{
		{nic.Options{RingSize: 16}, nil, "ring of 16 slots: want a power of two from "},
		{nic.Options{RingSize: 1000}, nil, "ring of 1000 slots"},
		{nic.Options{RingSize: 1 << 17}, nil, "ring of 131072 slots"},
		{nic.Options{MTU: 67}, nic.ErrFrameSize, "MTU 67: "},
		{nic.Options{MTU: 1501}, nic.ErrFrameSize, "the interface has 1500"},
		{nic.Options{MTU: 68}, nil, "MTU 68, "}, {nic.Options{RingSize: 1 << 16}, nil, "MTU 1500, "},
		{nic.Options{Qdisc: true}, nil, "sendto, through the qdisc"}, {nic.Options{}, nil, "sendto, qdisc bypassed, []"},
		{nic.Options{MAC: [6]byte{2, 9, 9, 9, 9, 9}}, nil, "02:09:09:09:09:09"},
		{nic.Options{Match: v.Config()}, nil, "[ipv4 forwarding is on for " + v.Host.Name},
	} {
		if c.o.Match != nil {
			forward("1")
		}
		c.o.Device = v.Host.Name
		v.Host.Do(func() {
			d, err := afpacket.Open(c.o)
			said := fmt.Sprint(err)
			if err == nil {
				i := d.Info()
				said = fmt.Sprintf("MTU %d, %s, %s, %s", i.MTU, i.MAC, i.Push, i.Notes)
				must.Close(t, d)
			}
			if !strings.Contains(said, c.says) || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("%+v: %s, want %s", c.o, said, c.says)
			}
		})
	}
}

// A bench receives frames as they were on the wire, or an error that names what is wrong.
func TestSendAndReceive(t *testing.T) {
	v := veth.New(t)
	d := must.Get(at(&v.Peer, nil))(t)
	defer d.Close()
	raw := v.Host.Raw(t)
	receive := func(what string, buf []byte, is func(f []byte) bool) (got []byte, err error) {
		await.Until(t, what, func() bool {
			var n int
			n, _, err = d.Recv(buf)
			got = buf[:n]
			return err != nil || n > 0 && is(got)
		})
		return got, err
	}
	buf := make([]byte, 2048)
	for _, tags := range [][][4]byte{nil, {{0x81, 0, 0x20, 7}}, {{0x88, 0xa8, 0, 9}},
		{{0x88, 0xa8, 0, 9}, {0x81, 0, 0, 7}}} {
		f := v.Echo(veth.Our4.Addr(), 7, tags...)
		raw.Send(f)
		_, err := receive(fmt.Sprintf("tags % x", tags), buf, func(g []byte) bool { return bytes.Equal(f, g) })
		check.OK(t, err)
	}
	long := longer(v.Echo(veth.Our4.Addr(), 8, [4]byte{0x81, 0, 0, 7}), 1518)
	raw.Send(long)
	_, err := receive("the longest frame", buf[:1518], func(g []byte) bool { return bytes.Equal(long, g) })
	check.OK(t, err)
	v.Host.Do(func() { // the kernel leaves the checksum to the device
		c, err := net.Dial("udp", netip.AddrPortFrom(v.Peer.IPv4.Addr(), 9).String())
		if check.OK(t, err); err == nil {
			_, err = c.Write([]byte("partial"))
			check.OK(t, errors.Join(err, c.Close()))
		}
	})
	f, err := receive("a datagram", buf, func(g []byte) bool { return bytes.HasSuffix(g, []byte("partial")) })
	must.OK(t, err)
	check.Equal(t, cksum.Sum(f[34:], cksum.Sum(f[26:34], uint16(17+len(f)-34))), 0xffff, "the datagram sums to %#x")

	raw.Send(v.Echo(veth.Our4.Addr(), 8))
	_, err = receive("an error", buf[:41], func([]byte) bool { return false })
	check.Fails(t, "a small buffer", err, nic.ErrFrameSize, " into a buffer of 41")
	check.Fails(t, "a long frame", d.Send(make([]byte, 1600)), nic.ErrFrameSize, "send: ")
	for _, step := range []struct {
		change func(netlink.Link) error
		want   error
	}{{netlink.LinkSetDown, nic.ErrDown}, {netlink.LinkDel, nic.ErrGone}} {
		v.Peer.Do(func() {
			l, err := netlink.LinkByName(v.Peer.Name)
			check.OK(t, err)
			check.OK(t, step.change(l))
		})
		check.Fails(t, "Send", d.Send(v.Echo(veth.Our4.Addr(), 9)), step.want, "sendto: ")
		_, err = receive("an error", buf, func([]byte) bool { return false })
		check.Fails(t, "Recv", err, nil, "afpacket: interface "+v.Peer.Name)
	}
	var s nic.Stats
	check.OK(t, d.ReadStats(&s))
	check.Equal(t, [2]uint64{s.TxErrors, s.TxFrames}, [2]uint64{2, 0}, "errors and frames: %d")
}

// Only what a filter lets through is received.
func TestOwnFilter(t *testing.T) {
	v := veth.New(t)
	var d *afpacket.Device
	program := must.Get(bpf.Assemble([]bpf.Instruction{bpf.LoadAbsolute{Off: 40, Size: 2}, // the sequence number
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 7, SkipFalse: 1}, bpf.RetConstant{Val: 1 << 16}, bpf.RetConstant{}}))(t)
	v.Peer.Do(func() {
		var err error
		d, err = afpacket.Open(nic.Options{Device: v.Peer.Name, Filter: program})
		check.OK(t, err)
	})
	defer d.Close()
	raw, buf := v.Host.Raw(t), make([]byte, 2048)
	raw.Send(v.Echo(veth.Our4.Addr(), 6))
	raw.Send(v.Echo(veth.Our4.Addr(), 7))
	n := 0
	await.Until(t, "a frame", func() bool { n, _, _ = d.Recv(buf); return n > 0 })
	check.Equal(t, n > 42 && buf[41] == 7, true, "it is the one that the filter lets through: %v")
}

// The responder's new MAC is announced.
func TestFollowMAC(t *testing.T) {
	v := veth.New(t)
	d := must.Get(at(&v.Host, v.Config()))(t)
	defer d.Close()
	raw, mac := v.Peer.Raw(t), [6]byte{2, 9, 9, 9, 9, 9}
	impaired := func(want string) {
		t.Helper()
		await.Until(t, "impaired "+want, func() bool { return fmt.Sprint(d.Impaired()) == want })
	}
	v.Host.Do(func() {
		l, err := netlink.LinkByName(v.Host.Name)
		check.OK(t, err)
		check.OK(t, netlink.LinkSetHardwareAddr(l, mac[:]))
	})
	impaired("[mac]")
	check.Equal(t, <-d.MACChanged(), mac, "the MAC is now %x")
	must.OK(t, d.FollowMAC(mac))
	impaired("[]")
	raw.Recv(func(f []byte) bool { return bytes.Equal(f[6:12], mac[:]) })
	check.Equal(t, d.Info().MAC, "02:09:09:09:09:09", "MAC %s")
}
