package sim

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Tap is a wire whose other end is a tap interface.
type Tap struct {
	fd   int
	name string
	buf  []byte
}

// OpenTap creates the interface in this thread's network namespace and brings it up. It needs CAP_NET_ADMIN. Close
// removes the interface. mtu is in bytes.
func OpenTap(name string, mtu int) (*Tap, error) {
	fail := func(what string, err error) (*Tap, error) {
		return nil, fmt.Errorf("sim: tap %s: %s: %w", name, what, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	t := &Tap{fd: fd, name: name, buf: make([]byte, 1<<16)}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Close()
		return fail("name", err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Close()
		return fail("create", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Close()
		return fail("socket", err)
	}
	defer unix.Close(s)
	ifr.SetUint32(uint32(mtu))
	if err := unix.IoctlIfreq(s, unix.SIOCSIFMTU, ifr); err != nil {
		t.Close()
		return fail("MTU", err)
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, ifr); err != nil {
		t.Close()
		return fail("flags", err)
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		t.Close()
		return fail("up", err)
	}
	return t, nil
}

// Close removes the interface. Disconnect all ports first.
func (t *Tap) Close() error { return unix.Close(t.fd) }

// Send drops the frame if the interface is down or its queue is full.
func (t *Tap) Send(_ time.Duration, frame []byte) { unix.Write(t.fd, frame) }

func (t *Tap) Recv(time.Duration) []byte {
	n, err := unix.Read(t.fd, t.buf)
	if err != nil || n <= 0 {
		return nil
	}
	if n < 60 {
		clear(t.buf[n:60])
	}
	// A device pads short frames when it sends; the kernel passes them unpadded.
	return append([]byte(nil), t.buf[:max(n, 60)]...)
}

// Wait returns when there is a frame to receive, or after a time.
func (t *Tap) Wait(most time.Duration) {
	timeout := unix.NsecToTimespec(int64(most))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}, &timeout, nil)
}

// Up returns true: the interface exists while the Tap does.
func (t *Tap) Up() bool { return true }
