package netif

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// namespace moves the test's thread to a network namespace. The function that it returns runs ip(8) there.
func namespace(t *testing.T) (ip func(lines ...string)) {
	needs.Root(t, "a network namespace")
	needs.Programs(t, "ip")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must.OK(t, unix.Unshare(unix.CLONE_NEWNET))
	return func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %s%v", line, out, err)
			}
		}
	}
}

// What an interface reports, what it announces, and what a watch says while the administrator changes it.
func TestInterface(t *testing.T) {
	ip := namespace(t)
	ip("link add one mtu 1500 address 02:00:00:00:00:01 type veth peer name two")
	check.Fails(t, "none", check.Err(Lookup("none")), nic.ErrNoDevice, "interface none: ")
	check.Fails(t, "one", check.Err(Lookup("one")), nic.ErrDown, "set it up first (ip link set one up)")
	ip("link set one up", "link set two up", "addr add 10.0.0.1/24 dev two")
	i := must.Get(Lookup("one"))(t)
	defer i.Close()
	var text strings.Builder
	used, most := i.Channels()
	link, err := i.Link()
	fmt.Fprintf(&text, "%s %x %d %s %d %d %d %d of %d channels, VLAN %t LRO %t local %t busy %t, %+v %v\n", i.Name,
		i.MAC,
		i.MTU, i.Driver, i.RxQueues, i.XDP, i.XDPHook, used, most, i.StripsVLAN(), i.LRO(), i.Local(), i.BusyPolls(),
		link, err)
	drops := must.Get(i.Drops())(t)
	fmt.Fprintf(&text, "drops %v\n", drops)
	peer, err := i.PeerReceivesXDP()
	owner, _ := Owner(netip.MustParseAddr("10.0.0.9"))
	fmt.Fprintf(&text, "peer %t %v, owners %q %q\n", peer, err,
		must.Get(i.Owner(netip.MustParseAddr("10.0.0.1")))(t), owner)

	for _, e := range []error{fmt.Errorf("program: %w (advice)", unix.EPERM), unix.EBUSY, unix.EEXIST, unix.EINVAL} {
		fmt.Fprintf(&text, "%v\n", i.ExplainBPF("XDP", e))
	}
	fd := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(NetworkOrder(unix.ETH_P_ALL))))(t)
	defer unix.Close(fd)
	must.OK(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)) // has the VLAN tag
	own := [6]byte{2, 9, 9, 9, 9, 9}
	addresses := []netip.Prefix{netip.MustParsePrefix("10.0.0.9/24"), netip.MustParsePrefix("fd00::9/64")}
	i.Announce(fd, own, &fastpath.Config{Addresses: addresses})
	i.Announce(fd, own, &fastpath.Config{Addresses: addresses, VLANs: []uint16{0, 0x123}})
	var m Message
	buf := make([]byte, 200)
	for got := 0; got < 6; { // at the peer
		var from unix.RawSockaddrInet6
		n, e := m.Receive(fd, buf, 0, &from)
		if e != 0 || from.Family != unix.AF_PACKET {
			t.Fatal(n, e, from)
		}
		if [6]byte(buf[6:]) == own {
			fmt.Fprintf(&text, "%x tag %x\n", buf[:n], m.control[32:34])
			got++
		}
	}

	log := slog.New(slog.NewTextHandler(&text, nil))
	o := Following{DownLimit: time.Hour, MTU: 1500, OwnMAC: true, Addresses: addresses[:1], Log: log}
	w := must.Get(i.Watch(o))(t)
	is := func(want string) {
		t.Helper()
		await.Until(t, want, func() bool { return fmt.Sprint(w.Impaired(), w.Err()) == want },
			func() string { return fmt.Sprint(w.Impaired(), w.Err()) })
		check.Equal(t, w.OK(), strings.HasSuffix(want, "<nil>"), "OK %t, "+want)
	}
	for _, step := range [][2]string{{"link set one mtu 1600", "[mtu] <nil>"}, {"link set one mtu 1500", "[] <nil>"},
		{"link set two mtu 9000", "[] <nil>"}, {"addr add 10.0.0.9/24 dev two", "[address] <nil>"},
		{"link set one down", "[address down] <nil>"}, {"addr del 10.0.0.9/24 dev two", "[down] <nil>"},
		{"link set one up", "[] <nil>"}, {"link set one address 02:00:00:00:00:02", "[mac] <nil>"},
		{"link set one address 02:00:00:00:00:03", "[mac] <nil>"}} {
		ip(step[0])
		is(step[1])
	}
	var mac [6]byte
	await.Until(t, "the last MAC", func() bool {
		select {
		case mac = <-w.MACChanged():
		default:
		}
		return mac == [6]byte{2, 0, 0, 0, 0, 3}
	})
	w.Followed([6]byte{2, 0, 0, 0, 0, 2})
	is("[mac] <nil>")
	w.Followed(mac)
	is("[] <nil>")
	w.Impair("other", "something", "do it")
	is("[other] <nil>")
	w.Close()
	for _, step := range []struct {
		limit      time.Duration
		line, want string
	}{
		{0, "link set one down", "[] interface one: interface is down: it was set down while in use"},
		{time.Millisecond, "link set one down", "[down] interface one: interface is down for 1ms (nic.down_limit)"},
		{time.Hour, "link del one",
			"[] interface one: device is gone: it was removed, or moved to another network namespace"},
	} {
		ip("link set one up")
		w = must.Get(i.Watch(Following{DownLimit: step.limit, MTU: 0}))(t)
		ip(step.line)
		is(step.want)
		w.Close()
	}
	_, err = i.Link()
	check.Fails(t, "Link", err, nic.ErrGone)
	_, err = i.Drops()
	check.Fails(t, "Drops", err, nil, "interface one: ")
	golden.Equal(t, "testdata/interface.txt", regexp.MustCompile(`(time|down)=\S+ `).ReplaceAllString(
		regexp.MustCompile(` down=\S+`).ReplaceAllString(text.String(), ""), ""))
}

// cmsg is a control message.
func cmsg(level, kind uint32, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(16+len(data)))
	b = binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(b, level), kind)
	return append(append(b, data...), make([]byte, -len(data)&7)...)
}

// A message's timestamp is the card's if it has one, and that of a sent message has the number of the send.
func TestStamp(t *testing.T) {
	stamp := func(kernel, card byte) []byte {
		return cmsg(unix.SOL_SOCKET, unix.SO_TIMESTAMPING, append(append(make([]byte, 8), kernel, 0, 0, 0, 0, 0, 0,
			0),
			append(make([]byte, 16), card, 0, 0, 0, 0, 0, 0, 0, 3*card, 0, 0, 0, 0, 0, 0, 0)[:32]...)...)
	}
	sent := func(level, kind uint32, origin byte) []byte {
		return cmsg(level, kind, 0, 0, 0, 0, origin, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 0)
	}
	short := cmsg(unix.SOL_SOCKET, unix.SO_TIMESTAMPING, make([]byte, 40)...)
	short[16] = 1
	for want, b := range map[string][]byte{
		"{0 false} 0 false":         nil,
		"{5 false} 0 false":         stamp(5, 0)[:64],
		"{0 false} 263 true":        append(short, sent(unix.SOL_IP, unix.IP_RECVERR, 4)...),
		"{0 false} 263 false":       sent(unix.SOL_IPV6, unix.IPV6_RECVERR, 1),
		"{1000000003 true} 0 false": stamp(5, 1),
		"{6 false} 263 true":        append(stamp(6, 0)[:64], sent(unix.SOL_PACKET, unix.PACKET_TX_TIMESTAMP, 4)...),
		"{7 false} 0 false":         append(stamp(7, 0)[:64], 99, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0),
		"{8 false} 0 false":         append(stamp(8, 0)[:64], 15, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0),
	} {
		m := Message{}
		m.hdr.SetControllen(copy(m.control[:], b))
		at, id, ok := m.Stamp()
		check.Equal(t, fmt.Sprint(at, " ", id, " ", ok), want, "%s")
	}
	data := make([]byte, 48)
	data[4], data[12] = 4, 7
	for _, level := range []uint32{unix.SOL_SOCKET, unix.SOL_IP, unix.SOL_IPV6, unix.SOL_PACKET} {
		for _, kind := range []uint32{unix.SO_TIMESTAMPING, unix.IP_RECVERR, unix.IPV6_RECVERR,
			unix.PACKET_TX_TIMESTAMP} {
			want := ""
			switch [2]uint32{level, kind} {
			case [2]uint32{unix.SOL_SOCKET, unix.SO_TIMESTAMPING}:
				want = "time"
			case [2]uint32{unix.SOL_IP, unix.IP_RECVERR}, [2]uint32{unix.SOL_IPV6, unix.IPV6_RECVERR},
				[2]uint32{unix.SOL_PACKET, unix.PACKET_TX_TIMESTAMP}:
				want = "send 7"
			}
			for size, want := range map[int]string{15: "", 48: want} {
				m, got := Message{}, ""
				m.hdr.SetControllen(copy(m.control[:], cmsg(level, kind, data[:size]...)))
				if at, id, ok := m.Stamp(); ok {
					got = fmt.Sprint("send ", id)
				} else if at.Nanoseconds != 0 {
					got = "time"
				}
				check.Equal(t, got, want, fmt.Sprintf("%d bytes of level %d, kind %d: %%q", size, level, kind))
			}
		}
	}
}
