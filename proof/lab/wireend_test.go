package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/sim"
)

// wireEnd is the peer at the end of a function's wire, where the test itself sends and receives.
type wireEnd struct {
	*sim.Cable
	start time.Time
	sent  int
	came  int
	tall  int // received frames of more than 224 bytes
}

func newWireEnd(c *sim.Cable) *wireEnd { return &wireEnd{Cable: c, start: time.Now()} }

func (e *wireEnd) send(f []byte) {
	e.sent++
	e.Send(time.Since(e.start), f)
}

func (e *wireEnd) recv() []byte {
	f := e.Recv(time.Since(e.start))
	if f != nil {
		e.came++
	}
	if len(f) > 224 {
		e.tall++
	}
	return f
}

// patience is how long a frame may take on a busy machine.
const patience = time.Minute

// stream sends n frames into e, at most window of them in flight, and receives the frames that leave at to. check
// checks each received frame, and returns its number: each number has to come once.
func (e *wireEnd) stream(to *wireEnd, n, window int, frame func(i int) []byte,
	check func(f []byte) (int, error)) error {
	seen := make([]bool, n)
	sent, came, last := 0, 0, time.Now()
	for came < n {
		for sent < n && sent-came < window {
			e.send(frame(sent))
			sent++
		}
		f := to.recv()
		if f == nil {
			if time.Since(last) > patience {
				missing := 0
				for seen[missing] {
					missing++
				}
				return fmt.Errorf("%d frames of %d came within %v of the one before; the first that is missing is %d: %x", came, n, patience, missing, head(frame(missing)))
			}
			nap()
			continue
		}
		last = time.Now()
		i, err := check(f)
		switch {
		case err != nil:
			return fmt.Errorf("frame %d that came: %w: %x", came, err, head(f))
		case i < 0 || i >= n:
			return fmt.Errorf("frame %d that came is none that was sent: %x", came, head(f))
		case seen[i]:
			return fmt.Errorf("frame %d came twice: %x", i, head(f))
		}
		seen[i] = true
		came++
	}
	return nil
}

func head(f []byte) []byte { return f[:min(len(f), 96)] }

func numbered(i int) net.HardwareAddr {
	return net.HardwareAddr(binary.BigEndian.AppendUint32([]byte{2, 0xee}, uint32(i)))
}

func numberOf(mac []byte) int {
	if mac[0] != 2 || mac[1] != 0xee {
		return -1
	}
	return int(binary.BigEndian.Uint32(mac[2:6]))
}

// packet builds a frame of layers, with correct lengths and checksums, and of at least 60 bytes.
func packet(all ...gopacket.SerializableLayer) []byte {
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		all...); err != nil {
		panic(err)
	}
	f := bytes.Clone(b.Bytes())
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

func pattern(i, n int) gopacket.Payload {
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(i*7 + j)
	}
	return b
}

var (
	nearIP, farIP = net.IP{10, 9, 0, 1}, net.IP{10, 9, 0, 2}
	farIP6        = net.ParseIP("fd00::2")
	nearIP6       = net.ParseIP("fd00::1")
)

// plain is UDP in IPv4 in a frame of size bytes, for station dst.
func plain(i int, dst net.HardwareAddr, size int) []byte {
	ip := &layers.IPv4{Version: 4, TTL: 64, Id: uint16(i), Protocol: layers.IPProtocolUDP, SrcIP: farIP, DstIP: nearIP}
	u := &layers.UDP{SrcPort: layers.UDPPort(20000 + i%20000), DstPort: 9}
	u.SetNetworkLayerForChecksum(ip)
	return packet(&layers.Ethernet{SrcMAC: numbered(i), DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}, ip, u,
		pattern(i, size-42))
}

func ping(i int, dst net.HardwareAddr, size int) []byte {
	return packet(&layers.Ethernet{SrcMAC: numbered(i), DstMAC: dst, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Id: uint16(i), Protocol: layers.IPProtocolICMPv4, SrcIP: farIP,
			DstIP: nearIP},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 7, Seq: uint16(i)},
		pattern(i, size-42))
}

// pong checks that f is the reply to a ping, byte by byte except for the checksum's value, and returns its number.
func pong(f []byte, dst net.HardwareAddr, size func(i int) int) (int, error) {
	i := numberOf(f)
	if i < 0 {
		return i, nil
	}
	want := ping(i, dst, size(i))
	copy(want[0:6], f[0:6])
	copy(want[6:12], dst)
	copy(want[26:30], nearIP)
	copy(want[30:34], farIP)
	want[34] = 0
	if len(f) >= 38 {
		copy(want[36:38], f[36:38])
	}
	if !bytes.Equal(f, want) {
		return i, fmt.Errorf("is not the reply to the request: %x", head(want))
	}
	if ones(f[34:max(size(i), 42)], 0) != 0xffff || ones(f[14:34], 0) != 0xffff {
		return i, fmt.Errorf("has a wrong checksum")
	}
	return i, nil
}

// faults lists the errors that a third-party decoder finds in the lengths and checksums of a frame.
func faults(f []byte) (gopacket.Packet, error) {
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		return p, e.Error()
	}
	if u, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP); ok {
		u.SetNetworkLayerForChecksum(p.NetworkLayer())
	}
	if c, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); ok {
		c.SetNetworkLayerForChecksum(p.NetworkLayer())
	}
	err, wrong := p.VerifyChecksums()
	if err != nil {
		return p, err
	}
	for _, w := range wrong {
		return p, fmt.Errorf("checksum of %v is %04x, has to be %04x", w.Layer.LayerType(), w.Actual, w.Correct)
	}
	return p, nil
}
