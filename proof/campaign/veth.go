package campaign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
)

// Names of the veth pair's ends.
const (
	ourEnd   = "echo0"
	theirEnd = "ask0"
)

// veth is a pair between the responder's namespace and another one, from which a packet socket sends requests.
type veth struct {
	probes
	c      *campaign
	near   *testbed.Namespace
	driver string
	pin    string
	sets   []string
	mu     sync.Mutex // held to use fd and buf
	fd     int
	buf    [2048]byte
}

func openVeth(driver string, pinned bool) func(*campaign, *rand.Rand) (target, error) {
	return func(c *campaign, r *rand.Rand) (_ target, err error) {
		v := &veth{c: c, driver: driver, fd: -1}
		if v.probes, err = newProbes(r, ourMAC, 1514); err != nil {
			return nil, err
		}
		if pinned {
			v.pin = fmt.Sprintf("campaign-%d-%d", os.Getpid(), c.parts)
		}
		if driver == "afxdp" && r.IntN(2) == 1 {
			v.sets = append(v.sets, "nic.generic_xdp=true")
		}
		if v.near, err = testbed.NewNamespace(); err != nil {
			return nil, err
		}
		if err := v.plug(); err != nil {
			v.near.Close()
			return nil, err
		}
		return v, nil
	}
}

func (v *veth) String() string { return v.what }

func (v *veth) args() []string {
	all := append([]string{"nic.driver=" + v.driver, "nic.device=" + ourEnd, addresses, "respond.stamp_ports=[862]"},
		v.sets...)
	if v.pin != "" {
		all = append(all, "nic.pin="+v.pin)
	}
	return all
}

// plug creates the pair and opens the socket.
func (v *veth) plug() error {
	up := func(name string, mac [6]byte) error {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(l, mac[:]); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}
	err := v.near.Do(func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: theirEnd})
		pair.PeerName, pair.PeerNamespace = ourEnd, netlink.NsFd(v.c.space.FD)
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		if err := up(theirEnd, theirMAC); err != nil {
			return err
		}
		return v.open()
	})
	if err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	return v.c.space.Do(func() error { return up(ourEnd, ourMAC) })
}

func (v *veth) open() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	l, err := netlink.LinkByName(theirEnd)
	if err == nil {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fd >= 0 {
		unix.Close(v.fd)
	}
	v.fd = fd
	return nil
}

// unplug removes the pair, and with it both interfaces.
func (v *veth) unplug() error {
	return v.near.Do(func() error {
		l, err := netlink.LinkByName(theirEnd)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

func (v *veth) setUp(space *testbed.Namespace, name string, up bool) error {
	return space.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

func (v *veth) ask(seq uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := unix.Write(v.fd, v.codec.Build(seq, 0))
	return err == nil
}

func (v *veth) take() (seq uint32, wrong string, any bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		n, err := unix.Read(v.fd, v.buf[:])
		if n <= 0 || err != nil {
			return 0, "", false
		}
		if seq, wrong, ours := v.judge(v.buf[:n]); ours {
			return seq, wrong, true
		}
	}
}

func (v *veth) silent() {}

// attached returns the XDP program on the responder's end, 0 for none.
func (v *veth) attached() (id uint32) {
	_ = v.c.space.Do(func() error {
		if l, err := netlink.LinkByName(ourEnd); err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
			id = l.Attrs().Xdp.ProgId
		}
		return nil
	})
	return id
}

func (v *veth) left() (all []string) {
	if v.pin != "" {
		if out, err := v.c.responder("unpin", v.pin); err != nil {
			all = append(all, fmt.Sprintf("the pin %s: %v: %s", v.pin, err, out))
		}
		if _, err := os.Lstat("/sys/fs/bpf/rebound/" + v.pin); err == nil {
			all = append(all, "the pin's folder "+v.pin)
		}
	}
	for end := time.Now().Add(20 * time.Second); v.attached() != 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if id := v.attached(); id != 0 {
		all = append(all, fmt.Sprintf("XDP program %d on the interface", id))
	}
	return all
}

func (v *veth) close() (all []string) {
	if err := v.unplug(); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		all = append(all, "the veth pair: "+err.Error())
	}
	unix.Close(v.fd)
	v.near.Close()
	return all
}
