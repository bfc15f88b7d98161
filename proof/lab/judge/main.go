// Command judge sends frames from an interface to a responder on the same wire, and expects exactly the replies that
// package fastpath gives, byte by byte: for every kind of request, and for randomly mutated requests.
//
//	judge IFACE FRAMES [partial]  the responder has corpus's MAC, addresses and UDP ports, no rate limit, and checks all
//	                              checksums; partial: checksums may be left to be completed by the receiver
//	judge IFACE loop              sends one datagram from port 7000 of corpus's other station to port 7001 of ours
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/corpus"
)

// every is the number of frames sent between checks of the replies.
const every = 16

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("want an interface and a number of frames")
	}
	w, err := open(args[0])
	if err != nil {
		return err
	}
	if args[1] == "loop" {
		d := corpus.UDP(corpus.Their4, corpus.Our4, 7000, 7001, []byte("around"))
		d[8] = 64                             // the TTL
		binary.BigEndian.PutUint16(d[10:], 0) // and the header checksum over it
		binary.BigEndian.PutUint16(d[10:], sum(d[:20]))
		return w.send(corpus.Pad(corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800, d), 60))
	}
	frames := 0
	if _, err := fmt.Sscan(args[1], &frames); err != nil {
		return fmt.Errorf("%q is no number of frames", args[1])
	}
	r, err := fastpath.New(fastpath.Config{MAC: corpus.OurMAC, Addresses: corpus.Addresses, UDPPorts: corpus.UDPPorts,
		ChecksumBytes:    1500,
		PartialChecksums: len(args) > 2 && args[2] == "partial"})
	if err != nil {
		return err
	}
	j := &judge{wire: w, responder: r, buf: make([]byte, 4096)}
	for tags := range 3 {
		for _, q := range corpus.Requests(tags) {
			if err := j.put(q.Frame); err != nil {
				return fmt.Errorf("%s under %d tags: %w", q.Name, tags, err)
			}
		}
	}
	m := corpus.NewMutator(5, 8)
	for i := range frames {
		if err := j.put(m.Next()); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
	}
	if err := j.settle(); err != nil {
		return err
	}
	fmt.Printf("%d frames, %d answered\n", j.sent, j.answered)
	return nil
}

type judge struct {
	wire
	responder *fastpath.Responder
	want      [][]byte
	waiting   int // frames since the last check
	sent      int
	answered  int
	mark      uint16
	buf       []byte
}

// put sends a frame as a card would, padded, and records its expected reply.
func (j *judge) put(f []byte) error {
	if len(f) > 1514 {
		f = f[:1514]
	}
	f = corpus.Pad(bytes.Clone(f), 60)
	copy(j.buf, f)
	if n := j.responder.Slow((*[64]byte)(j.buf), len(f)); n > 0 {
		if j.buf[0]&1 == 0 && [6]byte(j.buf) != corpus.TheirMAC {
			return nil // the reply would go to a station that does not exist here
		}
		j.want = append(j.want, bytes.Clone(j.buf[:n]))
	}
	j.sent++
	if err := j.send(f); err != nil {
		return err
	}
	if j.waiting++; j.waiting == every {
		return j.settle()
	}
	return nil
}

// settle sends one more request, waits for its reply and all earlier ones, and compares the replies.
func (j *judge) settle() error {
	j.waiting = 0
	j.mark++
	p := corpus.Echo(8, 18)
	binary.BigEndian.PutUint16(p[4:], 0x4d4b)
	binary.BigEndian.PutUint16(p[6:], j.mark)
	binary.BigEndian.PutUint16(p[2:], sum(p))
	f := corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800, corpus.IPv4(corpus.Their4, corpus.Our4, 1, p))
	copy(j.buf, f)
	n := j.responder.Slow((*[64]byte)(j.buf), len(f))
	last := bytes.Clone(j.buf[:n])
	if err := j.send(f); err != nil {
		return err
	}
	j.answered += len(j.want)
	want := append(j.want, last)
	j.want = nil
	for len(want) > 0 { // in any order: a sender with several queues does not keep order between flows
		got, err := j.receive(j.buf)
		if err != nil {
			return fmt.Errorf("%w: want %x", err, want[0])
		}
		i := slices.IndexFunc(want, func(w []byte) bool { return bytes.Equal(corpus.Pad(got, 60), corpus.Pad(w, 60)) })
		if i < 0 {
			return fmt.Errorf("got %x, want %x, or one of %d others", got, want[0], len(want)-1)
		}
		want = slices.Delete(want, i, i+1)
	}
	return nil
}

// sum is the checksum of b, whose length is even (RFC 1071).
func sum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

type wire struct{ fd int }

func open(name string) (wire, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return wire{}, err
	}
	const all = 0x0300 // ETH_P_ALL in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all)
	if err != nil {
		return wire{}, err
	}
	w := wire{fd}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)); err != nil {
		return w, err
	}
	return w, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
}

func (w wire) send(f []byte) error {
	for {
		_, err := unix.Write(w.fd, f)
		if err != unix.ENOBUFS && err != unix.EAGAIN {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// receive returns the next frame received from the wire. The kernel strips the outer VLAN tag, which receive inserts
// again.
func (w wire) receive(buf []byte) ([]byte, error) {
	oob := make([]byte, 256)
	for {
		n, on, _, from, err := unix.Recvmsg(w.fd, buf[4:], oob, 0)
		if err == unix.EINTR { // a call with a timeout is not restarted
			continue
		} else if err == unix.EAGAIN {
			return nil, fmt.Errorf("nothing came for %v", patience)
		} else if err != nil {
			return nil, err
		}
		if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA ||
				len(m.Data) < int(unsafe.Sizeof(auxdata{})) {
				continue
			}
			if a := (*auxdata)(unsafe.Pointer(&m.Data[0])); a.status&unix.TP_STATUS_VLAN_VALID != 0 {
				copy(buf, buf[4:16])
				binary.BigEndian.PutUint16(buf[12:], a.tpid)
				binary.BigEndian.PutUint16(buf[14:], a.tci)
				return buf[:n+4], nil
			}
		}
		return buf[4 : n+4], nil
	}
}

// auxdata is struct tpacket_auxdata (linux/if_packet.h).
type auxdata struct {
	status, length, snaplen uint32
	mac, net, tci, tpid     uint16
}

// patience is how long judge waits for a reply.
const patience = time.Minute
