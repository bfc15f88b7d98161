package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"rebound/nic/sim"
)

// bootServer is a host at the wire's far end that brings up a client without anything: DHCP (RFC 2131) with the name of a file,
// and TFTP (RFC 1350, options of RFC 2347 to 2349). It gives one address to one client.
type bootServer struct {
	wire  sim.Wire
	start time.Time
	boot  string            // name of the first file
	files map[string][]byte // by name
	asked chan string       // names of files that were asked for

	mu            sync.Mutex
	frames        int
	blocks, again int
	wrong         []string
	transfers     map[layers.UDPPort]*transfer // by the server's port
	stop, stopped chan struct{}
}

// transfer is one file on its way.
type transfer struct {
	data   []byte
	size   int // of a block
	block  int // the last that was sent; 0 for the options
	client layers.UDPPort
}

var (
	serverMAC, serverIP = net.HardwareAddr{2, 0, 0, 0, 0xee, 1}, net.IP{10, 9, 0, 1}
	clientIP            = net.IP{10, 9, 0, 2}
	mask                = net.IP{255, 255, 255, 0}
)

func newBootServer(w sim.Wire, boot string, files map[string][]byte) *bootServer {
	b := &bootServer{wire: w, start: time.Now(), boot: boot, files: files, asked: make(chan string, 100),
		transfers: map[layers.UDPPort]*transfer{}, stop: make(chan struct{}), stopped: make(chan struct{})}
	go b.run()
	return b
}

func (b *bootServer) close() {
	close(b.stop)
	<-b.stopped
}

func (b *bootServer) run() {
	defer close(b.stopped)
	for {
		select {
		case <-b.stop:
			return
		default:
		}
		f := b.wire.Recv(time.Since(b.start))
		if f == nil {
			nap()
			continue
		}
		b.mu.Lock()
		b.frames++
		if err := b.take(f); err != nil && len(b.wrong) < 10 {
			b.wrong = append(b.wrong, fmt.Sprintf("%v: %x", err, f[:min(len(f), 80)]))
		}
		b.mu.Unlock()
	}
}

func (b *bootServer) take(f []byte) error {
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.NoCopy)
	eth, _ := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
		if arp.Operation == layers.ARPRequest && serverIP.Equal(net.IP(arp.DstProtAddress)) {
			b.send(eth.SrcMAC, layers.EthernetTypeARP, &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4,
				HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPReply, SourceHwAddress: serverMAC, SourceProtAddress: serverIP,
				DstHwAddress: arp.SourceHwAddress, DstProtAddress: arp.SourceProtAddress})
		}
		return nil
	}
	ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if ip == nil || udp == nil {
		return nil // IPv6's router solicitations, and the like
	}
	udp.SetNetworkLayerForChecksum(ip)
	if err, sum := udp.VerifyChecksum(); udp.Checksum != 0 && (err != nil || !sum.Valid) {
		return fmt.Errorf("UDP checksum %#x, %v", udp.Checksum, err)
	}
	switch {
	case udp.DstPort == 67:
		return b.dhcp(p)
	case udp.DstPort == 69:
		return b.request(eth.SrcMAC, udp.SrcPort, udp.Payload)
	}
	if x := b.transfers[udp.DstPort]; x != nil {
		return b.acknowledged(eth.SrcMAC, udp.DstPort, x, udp.Payload)
	}
	return nil
}

// send completes a frame: checksums and lengths are gopacket's.
func (b *bootServer) send(to net.HardwareAddr, typ layers.EthernetType, l ...gopacket.SerializableLayer) {
	buf := gopacket.NewSerializeBuffer()
	all := append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: serverMAC, DstMAC: to, EthernetType: typ}}, l...)
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		b.wrong = append(b.wrong, err.Error())
		return
	}
	f := append([]byte(nil), buf.Bytes()...)
	for len(f) < 60 {
		f = append(f, 0)
	}
	b.wire.Send(time.Since(b.start), f)
}

func (b *bootServer) udp(to net.HardwareAddr, dst net.IP, from, port layers.UDPPort, body gopacket.SerializableLayer) {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: serverIP, DstIP: dst}
	u := &layers.UDP{SrcPort: from, DstPort: port}
	u.SetNetworkLayerForChecksum(ip)
	b.send(to, layers.EthernetTypeIPv4, ip, u, body)
}

func (b *bootServer) dhcp(p gopacket.Packet) error {
	q, ok := p.Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
	if !ok {
		return fmt.Errorf("no DHCP in a datagram to port 67")
	}
	answer := layers.DHCPMsgTypeUnspecified
	for _, o := range q.Options {
		if o.Type == layers.DHCPOptMessageType && len(o.Data) == 1 {
			answer = map[layers.DHCPMsgType]layers.DHCPMsgType{
				layers.DHCPMsgTypeDiscover: layers.DHCPMsgTypeOffer, layers.DHCPMsgTypeRequest: layers.DHCPMsgTypeAck,
			}[layers.DHCPMsgType(o.Data[0])]
		}
	}
	if answer == layers.DHCPMsgTypeUnspecified {
		return nil
	}
	b.udp(net.HardwareAddr{255, 255, 255, 255, 255, 255}, net.IPv4bcast.To4(), 67, 68, &layers.DHCPv4{
		Operation: layers.DHCPOpReply, HardwareType: layers.LinkTypeEthernet, HardwareLen: 6, Xid: q.Xid, Flags: q.Flags,
		YourClientIP: clientIP, NextServerIP: serverIP, ClientHWAddr: q.ClientHWAddr, File: []byte(b.boot),
		Options: layers.DHCPOptions{
			layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{byte(answer)}),
			layers.NewDHCPOption(layers.DHCPOptServerID, serverIP),
			layers.NewDHCPOption(layers.DHCPOptLeaseTime, []byte{0, 0, 0x0e, 0x10}),
			layers.NewDHCPOption(layers.DHCPOptSubnetMask, mask),
			layers.NewDHCPOption(175, []byte{0xb0, 1, 1}), // iPXE's own: no proxy DHCP, it need not wait for one
		},
	})
	return nil
}

// Operations of TFTP.
const (
	tftpRead  = 1
	tftpData  = 3
	tftpAck   = 4
	tftpError = 5
	tftpOACK  = 6
)

// request begins a transfer, from a port of its own.
func (b *bootServer) request(to net.HardwareAddr, client layers.UDPPort, body []byte) error {
	if len(body) < 4 || binary.BigEndian.Uint16(body) != tftpRead {
		return nil
	}
	words := strings.Split(strings.TrimSuffix(string(body[2:]), "\x00"), "\x00")
	name := strings.TrimPrefix(words[0], "/")
	select {
	case b.asked <- name:
	default:
	}
	data, ok := b.files[name]
	if !ok {
		b.udp(to, clientIP, 69, client, gopacket.Payload("\x00\x05\x00\x01no such file\x00"))
		return nil
	}
	port := layers.UDPPort(4000 + len(b.transfers))
	x := &transfer{data: data, size: 512, client: client}
	b.transfers[port] = x
	oack := "\x00\x06"
	for i := 2; i+1 < len(words); i += 2 {
		switch n, _ := strconv.Atoi(words[i+1]); strings.ToLower(words[i]) {
		case "blksize":
			x.size = min(max(n, 8), 1428)
			oack += fmt.Sprintf("blksize\x00%d\x00", x.size)
		case "tsize":
			oack += fmt.Sprintf("tsize\x00%d\x00", len(data))
		}
	}
	if len(oack) > 2 {
		b.udp(to, clientIP, port, client, gopacket.Payload(oack))
		return nil
	}
	b.block(to, port, x, 1)
	return nil
}

// acknowledged sends the next block, or the last one again if it got lost. The block's number has 16 bits.
func (b *bootServer) acknowledged(to net.HardwareAddr, port layers.UDPPort, x *transfer, body []byte) error {
	if len(body) < 4 {
		return fmt.Errorf("TFTP of %d bytes", len(body))
	}
	switch op, n := binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:]); {
	case op == tftpError:
		return fmt.Errorf("the client gave up: %q", body[4:])
	case op != tftpAck:
	case n == uint16(x.block):
		b.block(to, port, x, x.block+1)
	case n == uint16(x.block-1):
		b.again++
		b.block(to, port, x, x.block)
	}
	return nil
}

func (b *bootServer) block(to net.HardwareAddr, port layers.UDPPort, x *transfer, n int) {
	at := (n - 1) * x.size
	if at > len(x.data) {
		return // the last block, which is shorter than others, has arrived
	}
	x.block = n
	b.blocks++
	head := binary.BigEndian.AppendUint16([]byte{0, tftpData}, uint16(n))
	b.udp(to, clientIP, port, x.client, gopacket.Payload(append(head, x.data[at:min(at+x.size, len(x.data))]...)))
}

// TestBootServer is a client by hand: an address, and a file over several blocks with one that has to be sent again.
func TestBootServer(t *testing.T) {
	near, far := sim.Pair()
	file := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 50)
	b := newBootServer(far, "first", map[string][]byte{"first": file})
	defer b.close()
	us := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	send := func(dst net.IP, from, to layers.UDPPort, body gopacket.SerializableLayer) {
		buf := gopacket.NewSerializeBuffer()
		ip := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, SrcIP: clientIP, DstIP: dst}
		u := &layers.UDP{SrcPort: from, DstPort: to}
		u.SetNetworkLayerForChecksum(ip)
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: us, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv4}, ip, u, body); err != nil {
			t.Fatal(err)
		}
		near.Send(0, append([]byte(nil), buf.Bytes()...))
	}
	receive := func() (gopacket.Packet, *layers.UDP) {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if f := near.Recv(time.Hour); f != nil {
				p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
				u, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
				if u == nil {
					t.Fatalf("received %x", f)
				}
				return p, u
			}
		}
		t.Fatal("no reply")
		return nil, nil
	}
	send(net.IPv4bcast.To4(), 68, 67, &layers.DHCPv4{Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, Xid: 77,
		ClientHWAddr: us, Options: layers.DHCPOptions{layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{1})}})
	p, u := receive()
	offer, _ := p.Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
	if u.DstPort != 68 || offer == nil || offer.Xid != 77 || !offer.YourClientIP.Equal(clientIP) || !bytes.HasPrefix(offer.File, []byte("first\x00")) {
		t.Fatalf("offer %+v", offer)
	}
	send(serverIP, 1000, 69, gopacket.Payload("\x00\x01first\x00octet\x00blksize\x00100\x00"))
	_, u = receive()
	if string(u.Payload) != "\x00\x06blksize\x00100\x00" || u.DstPort != 1000 || <-b.asked != "first" {
		t.Fatalf("options %q", u.Payload)
	}
	var got []byte
	for _, ack := range []byte{0, 1, 1, 2} { // block 2 is lost once
		send(serverIP, 1000, u.SrcPort, gopacket.Payload{0, tftpAck, 0, ack})
		_, d := receive()
		if d.Payload[3] != ack+1 {
			t.Fatalf("block %d after the acknowledgement of %d", d.Payload[3], ack)
		}
		got = append(got[:100*int(ack)], d.Payload[4:]...)
	}
	if !bytes.Equal(got, file) {
		t.Errorf("received %x", got)
	}
	send(serverIP, 1001, 69, gopacket.Payload("\x00\x01second\x00octet\x00"))
	if _, u = receive(); u.Payload[1] != tftpError {
		t.Errorf("a file that is not there: %q", u.Payload)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wrong) > 0 || b.again != 1 {
		t.Errorf("%d sent again, %q", b.again, b.wrong)
	}
}
