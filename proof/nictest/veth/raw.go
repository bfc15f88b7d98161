package veth

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
)

// Raw is a plain packet socket on an End.
type Raw struct {
	fd int
	t  testing.TB
}

// Raw opens a socket that sees all frames that arrive at the end. The test closes it.
func (e *End) Raw(t testing.TB) *Raw {
	t.Helper()
	fd, err := 0, error(nil)
	e.Do(func() {
		protocol := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		var ifr *unix.Ifreq
		if ifr, err = unix.NewIfreq(e.Name); err == nil {
			if err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err == nil {
				err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: int(ifr.Uint32())})
			}
		}
	})
	if err != nil {
		t.Fatal("raw socket:", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &Raw{fd, t}
}

// Send sends a frame.
func (r *Raw) Send(frame []byte) {
	r.t.Helper()
	if _, err := unix.Write(r.fd, frame); err != nil {
		r.t.Fatal("raw send:", err)
	}
}

// offer sends a frame, which the interface may drop and count: if its queue is full, the sender gets ENOBUFS.
func (r *Raw) offer(frame []byte) {
	r.t.Helper()
	if _, err := unix.Write(r.fd, frame); err != nil && err != unix.ENOBUFS {
		r.t.Fatal("raw send:", err)
	}
}

// Recv waits for a frame that want accepts, with its VLAN tag in place, and fails the test after a minute without one.
func (r *Raw) Recv(want func(frame []byte) bool) []byte {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, 100); n <= 0 {
			continue
		}
		b, control := make([]byte, 2048), make([]byte, 256)
		n, c, _, _, err := unix.Recvmsg(r.fd, b[4:], control, 0)
		if err != nil {
			r.t.Fatal("raw receive:", err)
		}
		frame := retag(b, n, control[:c])
		if want(frame) {
			return frame
		}
	}
	r.t.Fatal("no frame as expected")
	return nil
}

// retag puts a stripped VLAN tag back in front of the EtherType: the frame of n bytes is at b[4:].
func retag(b []byte, n int, control []byte) []byte {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA {
			continue
		}
		a := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
		if a.Status&unix.TP_STATUS_VLAN_VALID != 0 {
			copy(b, b[4:16])
			binary.BigEndian.PutUint16(b[12:], a.Vlan_tpid)
			binary.BigEndian.PutUint16(b[14:], a.Vlan_tci)
			return b[:n+4]
		}
	}
	return b[4 : 4+n]
}

// Echo builds an echo request from Peer to an address in Host's subnet, with tags before its EtherType.
func (v *Pair) Echo(to netip.Addr, seq uint16, tags ...[4]byte) []byte {
	f := slices.Concat(v.Host.MAC, v.Peer.MAC)
	for _, t := range tags {
		f = append(f, t[:]...)
	}
	icmp := make([]byte, 64)
	binary.BigEndian.PutUint16(icmp[4:], 0x5262)
	binary.BigEndian.PutUint16(icmp[6:], seq)
	for i := range icmp[8:] {
		icmp[8+i] = byte(i)
	}
	if to.Is4() {
		ip := []byte{0x45, 0, 0, 84, 0, 0, 0, 0, 33, 1, 0, 0}
		ip = slices.Concat(ip, v.Peer.IPv4.Addr().AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^cksum.Sum(ip, 0))
		icmp[0] = 8
		binary.BigEndian.PutUint16(icmp[2:], ^cksum.Sum(icmp, 0))
		return slices.Concat(f, []byte{8, 0}, ip, icmp)
	}
	ip := slices.Concat([]byte{0x60, 0, 0, 0, 0, 64, 58, 33}, v.Peer.IPv6.Addr().AsSlice(), to.AsSlice())
	icmp[0] = 128
	binary.BigEndian.PutUint16(icmp[2:], ^cksum.Sum(icmp, cksum.Sum(ip[8:], 64+58)))
	return slices.Concat(f, []byte{0x86, 0xdd}, ip, icmp)
}
