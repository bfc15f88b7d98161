package appliance

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// trunk is the network of a guest that sends and receives tagged frames: the frames of one VLAN are those of a tap in
// the test's namespace, without their tags.
type trunk struct {
	netdev string
	plain  atomic.Bool // frames to the guest have no tag
	others captured    // frames of the guest without a tag, or with another one
}

func newTrunk(t *testing.T, tap string, id uint16) *trunk {
	t.Helper()
	fd := must.Get(unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0))(t)
	r := must.Get(unix.NewIfreq(tap))(t)
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	must.OK(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, r))
	device := os.NewFile(uintptr(fd), tap) // now that it can be polled
	t.Cleanup(func() { device.Close() })
	dir := must.Get(os.MkdirTemp("", "trunk"))(t) // the paths of sockets are short
	t.Cleanup(func() { os.RemoveAll(dir) })
	ours, theirs := dir+"/test", dir+"/guest"
	c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: ours, Net: "unixgram"}))(t)
	t.Cleanup(func() { c.Close() })
	k := &trunk{netdev: fmt.Sprintf("dgram,id=m,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", theirs,
		ours), others: captured{kinds: map[string]bool{}}}
	tag := binary.BigEndian.AppendUint16([]byte{0x81, 0x00}, id)
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := device.Read(b)
			if err != nil {
				return
			}
			frame := b[:n]
			if !k.plain.Load() {
				frame = slices.Concat(b[:12], tag, b[12:n])
			}
			c.WriteToUnix(frame, &net.UnixAddr{Name: theirs, Net: "unixgram"}) // lost while there is no guest
		}
	}()
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if n > 16 && bytes.Equal(b[12:16], tag) {
				device.Write(slices.Concat(b[:12], b[16:n]))
				continue
			}
			k.others.mu.Lock()
			k.others.kinds[kindOf(b[:n])] = true
			k.others.mu.Unlock()
		}
	}()
	return k
}

// Management in a VLAN: DHCP and the pages are tagged, and nothing is answered without a tag.
func TestVLAN(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	side := newSide(t)
	const id, tap = 77, "rbappl77"
	trunk := newTrunk(t, tap, id)
	address(t, tap, "10.77.0.1/24")
	lease(t, tap, "")
	d := disk(t, dir+"/rebound.img", map[string]string{"/rebound.toml": answering(
		fmt.Sprintf("[appliance]\nvlan = %d\n", id))})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, sockets: m.sockets[:1], netdev: trunk.netdev})
	g.host, g.dial = "10.77.0.2:9469", side.dial
	g.says("rebound: ready driver=", 1)
	if line := g.says("management: http://", 1); !strings.HasPrefix(line, "management: http://10.77.0.2:9469 on eth") ||
		!strings.HasSuffix(line, ".77") {
		t.Errorf("%q", line)
	}
	if s := g.status(); s.State != "answering" {
		t.Errorf("%+v", s)
	}
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")

	// The same address without a tag: first by ARP, then with the guest's MAC address known.
	link := must.Get(netlink.LinkByName(tap))(t)
	neighbours := must.Get(netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4))(t)
	i := slices.IndexFunc(neighbours, func(n netlink.Neigh) bool { return n.IP.Equal(net.IPv4(10, 77, 0, 2)) })
	if i < 0 {
		t.Fatalf("neighbours in the VLAN: %v", neighbours)
	}
	guest := neighbours[i]
	ask := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if c, err := side.dial(ctx, "tcp", g.host); err == nil {
			c.Close()
			t.Error("connected without a tag")
		}
	}
	trunk.plain.Store(true)
	must.OK(t, netlink.NeighDel(&guest))
	ask()
	guest.State = netlink.NUD_PERMANENT
	must.OK(t, netlink.NeighSet(&guest))
	ask()
	trunk.plain.Store(false)
	// in the VLAN, after all that the guest has received before
	if s := g.status(); s.State != "answering" || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	if got := trunk.others.all(); len(got) > 0 {
		t.Errorf("sent without the tag: %q", got)
	}
	g.powerButton()
	fsck(t, d)
}
