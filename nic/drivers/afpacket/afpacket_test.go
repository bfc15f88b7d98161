package afpacket_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/afpacket"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

var (
	_ nic.Device    = (*afpacket.Device)(nil)
	_ nic.CardClock = (*afpacket.Device)(nil)
)

func open(o nic.Options) (nic.Device, error) { return afpacket.Open(o) }

func TestAnswers(t *testing.T) { veth.Answers(t, open, nic.Options{}) }
func TestFaults(t *testing.T)  { veth.Faults(t, open) }
func TestLoops(t *testing.T)   { veth.Loops(t, open) }

func TestFanout(t *testing.T) {
	v := veth.New(t)
	s := v.Serve(t, open, nic.Options{Queues: 2})
	nictest.Apart(t, s.Device.(*afpacket.Device).Queues())
	v.Flows(t, s)
}

// TestFilter keeps TCP out of the ring, and counts a segmented datagram that a slot cannot hold.
func TestFilter(t *testing.T) {
	v := veth.New(t)
	s := v.Serve(t, open, nic.Options{})
	v.TCP(t)
	var st nic.Stats
	if err := s.Device.ReadStats(&st); err != nil || st.Extra["tp_packets"] > 50 {
		t.Errorf("a megabyte over TCP: %v, %v", st.Extra, err)
	}
	v.Peer.Do(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(veth.Our4.Addr(), veth.EchoPort)))
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		raw, _ := c.SyscallConn()
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1400) })
		check.OK(t, err)
		_, err = c.Write(make([]byte, 4200))
		check.OK(t, err)
	})
	for deadline := time.Now().Add(time.Minute); st.RxErrors == 0 && time.Now().Before(deadline); {
		must.OK(t, s.Device.ReadStats(&st))
	}
	if st.RxErrors != 1 || st.Extra["rx_truncated"] != 1 {
		t.Errorf("a datagram of three segments: %+v", st)
	}
}

// at opens a device on one end of a pair.
func at(e *veth.End, c *fastpath.Config) (d *afpacket.Device, err error) {
	e.Do(func() { d, err = afpacket.Open(nic.Options{Device: e.Name, Match: c}) })
	return d, err
}

func TestKernelOwns(t *testing.T) {
	v := veth.New(t)
	for _, p := range []netip.Prefix{v.Host.IPv4, v.Host.IPv6} {
		c := v.Config()
		c.Addresses = append(c.Addresses, p)
		check.Fails(t, "open for the kernel's address", check.Err(at(&v.Host, c)), nic.ErrBusy, p.Addr().String())
	}
}

// TestOneAnswers refuses an address that another device answers for, until that is closed.
func TestOneAnswers(t *testing.T) {
	v := veth.New(t)
	other := v.Config()
	other.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.99/24")}
	first := must.Get(at(&v.Host, v.Config()))(t)
	check.Fails(t, "a second", check.Err(at(&v.Host, v.Config())), nic.ErrBusy, v.Config().Addresses[0].Addr().String())
	must.Close(t, must.Get(at(&v.Host, other))(t))
	must.Close(t, first)
	must.Close(t, must.Get(at(&v.Host, v.Config()))(t))
}

// child is the variable that selects what the test binary does in another process.
const child = "AFPACKET_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		if lo, err := netlink.LinkByName("lo"); err == nil {
			netlink.LinkSetUp(lo) // in the machine's own namespace it is up, and this is refused
		}
		d, err := afpacket.Open(nic.Options{Device: "lo"})
		if err == nil {
			err = d.Send(make([]byte, 60))
		}
		if err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("a frame was sent")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestUserNamespace opens a device as an unprivileged user: allowed in its own network namespace, refused with an
// explanation in the machine's.
func TestUserNamespace(t *testing.T) {
	needs.Root(t, "becoming another user")
	for _, own := range []bool{true, false} {
		c := exec.Command("/proc/self/exe")
		c.Env = []string{child + "=1"}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER,
			Credential:  &syscall.Credential{NoSetGroups: true},
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}}
		if own {
			c.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
		}
		out, err := c.CombinedOutput()
		if c.Process == nil {
			t.Skip("no user namespace here: ", err)
		}
		t.Logf("own network namespace %v: %s (%v)", own, out, err)
		check.Contains(t, string(out), map[bool]string{true: "a frame was sent", false: "CAP_NET_RAW"}[own])
	}
}

// TestTimestamps has the kernel stamp echo requests and replies: sent, then received, in order and within the round
// trip.
func TestTimestamps(t *testing.T) {
	v := veth.New(t)
	v.Serve(t, open, nic.Options{})
	d := must.Get(at(&v.Peer, nil))(t)
	defer d.Close()
	check.Equal(t, must.Get(d.EnableTimestamps(true))(t), nic.Timestamping{RxSoftware: true, TxSoftware: true},
		"in force %+v")
	buf := make([]byte, 2048)
	for seq := range uint16(20) {
		before := time.Now().UnixNano()
		must.OK(t, d.Send(v.Echo(veth.Our4.Addr(), seq)))
		var rx nic.Timestamp
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			n, _, err := d.Recv(buf)
			must.OK(t, err)
			if n == 98 && buf[34] == 0 && buf[41] == byte(seq) {
				rx = d.RxTimestamp()
				break
			}
		}
		id, tx, ok, err := d.TxTimestamp()
		if err != nil || !ok || id != uint32(seq) || tx.Hardware || rx.Hardware {
			t.Errorf("frame %d: transmit stamp %d %+v %v, %v", seq, id, tx, ok, err)
		}
		if !(before <= tx.Nanoseconds && tx.Nanoseconds < rx.Nanoseconds && rx.Nanoseconds <= time.Now().UnixNano()) {
			t.Errorf("frame %d: sent after %d, stamped %d and %d", seq, before, tx.Nanoseconds, rx.Nanoseconds)
		}
	}
	if _, _, ok, err := d.TxTimestamp(); ok || err != nil {
		t.Errorf("a stamp too many: %v", err)
	}
	check.Fails(t, "the clock of an interface without a card", check.Err(d.ReadClock()), nil, "has no clock /dev/ptpN")
	send, want := v.Echo(veth.Our4.Addr(), 99), 0
	if n := testing.AllocsPerRun(100, func() { // with -rate it is called between any two probes
		want++
		check.OK(t, d.Send(send))
		for ok := true; ok; want-- {
			_, _, ok, _ = d.TxTimestamp()
		}
		want++
	}); n != 0 || want != 0 {
		t.Errorf("%v allocations for a stamp; %d stamps missing", n, want)
	}
}

func TestHotLoop(t *testing.T) {
	nictest.StackAccesses(t, "github.com/rebound-nic/rebound/nic/drivers/afpacket", "(*Queue).Poll", 66)
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/afpacket", "(*Queue).Poll",
		"unix.RawSyscall6", "polling.TSC", "afpacket.(*long).send", "afpacket.(*Queue).failed",
		"afpacket.(*header).retag", "afpacket.complete", "mmio.Store32",
		"runtime.panicunsafeslicelen", "runtime.panicunsafeslicenilptr")
}

// Frames on veth may carry checksums that were left to a device: the responder reports it.
func TestInfoTellsPartialChecksums(t *testing.T) {
	v := veth.New(t)
	d := must.Get(at(&v.Host, nil))(t)
	defer d.Close()
	check.Equal(t, d.Info().PartialChecksums, true, "PartialChecksums is %v")
}

// TestLongServiceTag sends frames up to the longest that the interface supports, with an outer 802.1ad tag, for which
// the kernel does not grant a packet socket four bytes beyond the MTU.
func TestLongServiceTag(t *testing.T) {
	v := veth.New(t)
	v.Peer.Do(func() { // so that the question can be sent
		l, err := netlink.LinkByName(v.Peer.Name)
		if err == nil {
			err = netlink.LinkSetMTU(l, 2000)
		}
		check.OK(t, err)
	})
	s := v.Serve(t, open, nic.Options{})
	raw := v.Peer.Raw(t)
	for i, size := range []int{1000, 1514, 1515, 1516, 1517, 1518, 1518, 1000} {
		for range 20 { // more than the ring has slots
			sent := longer(v.Echo(veth.Our4.Addr(), uint16(i), [4]byte{0x88, 0xa8, 0, 7}), size)
			raw.Send(sent)
			got := raw.Recv(func(f []byte) bool {
				return len(f) >= size && string(f[:6]) == string(v.Peer.MAC) && string(f[12:16]) == "\x88\xa8\x00\x07"
			})
			if len(got) != size || !bytes.Equal(got[46:], sent[46:]) || got[38] != 0 {
				t.Fatalf("%d bytes: answered by %d: % x", size, len(got), got[:50])
			}
		}
	}
	var st nic.Stats
	if err := s.Device.ReadStats(&st); err != nil || st.TxErrors != 0 || st.TxDropped != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	// A bench sends them, too.
	long := longer(v.Echo(veth.Our4.Addr(), 99, [4]byte{0x88, 0xa8, 0, 7}), 1518)
	copy(long, v.Peer.MAC)
	d := must.Get(at(&v.Host, nil))(t)
	defer d.Close()
	must.OK(t, d.Send(long))
	raw.Recv(func(f []byte) bool { return bytes.Equal(f, long) })
}

// longer pads a tagged echo request over IPv4 to size bytes.
func longer(f []byte, size int) []byte {
	const l3 = 18
	f = append(f, make([]byte, size-len(f))...)
	for i := 102; i < size; i++ {
		f[i] = byte(i)
	}
	put := func(at int, b []byte) {
		b[at], b[at+1] = 0, 0
		binary.BigEndian.PutUint16(b[at:], ^cksum.Sum(b, 0))
	}
	binary.BigEndian.PutUint16(f[l3+2:], uint16(size-l3))
	put(10, f[l3:l3+20])
	put(2, f[l3+20:])
	return f
}
