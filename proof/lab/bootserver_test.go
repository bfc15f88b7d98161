package lab

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/lab/boot"
	"github.com/rebound-nic/rebound/sim"
)

// bootServer is a boot server at the other end of the wire: boot.Server with the frames around its datagrams.
type bootServer struct {
	wire  sim.Wire
	start time.Time
	asked chan string // names of files that were requested

	mu            sync.Mutex
	server        boot.Server
	frames        int
	wrong         []string
	stop, stopped chan struct{}
}

var (
	serverMAC, serverIP = net.HardwareAddr{2, 0, 0, 0, 0xee, 1}, net.IP{10, 9, 0, 1}
	clientIP            = net.IP{10, 9, 0, 2}
)

func newBootServer(w sim.Wire, first string, files map[string][]byte) *bootServer {
	b := &bootServer{wire: w, start: time.Now(), asked: make(chan string, 100), stop: make(chan struct{}), stopped: make(chan struct{})}
	b.server = boot.Server{Address: netip.AddrFrom4([4]byte(serverIP)), Client: netip.AddrFrom4([4]byte(clientIP)), Boot: first, Files: files,
		Asked: func(name string) {
			select {
			case b.asked <- name:
			default:
			}
		}}
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
		return nil // IPv6 router solicitations and similar frames
	}
	udp.SetNetworkLayerForChecksum(ip)
	if err, sum := udp.VerifyChecksum(); udp.Checksum != 0 && (err != nil || !sum.Valid) {
		return fmt.Errorf("UDP checksum %#x, %v", udp.Checksum, err)
	}
	d, err := b.server.Take(uint16(udp.DstPort), netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.SrcIP.To4())), uint16(udp.SrcPort)), udp.Payload)
	if err != nil || d == nil {
		return err
	}
	mac := eth.SrcMAC
	if udp.DstPort == boot.DHCPPort {
		mac = layers.EthernetBroadcast
	}
	out := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: serverIP, DstIP: d.To.Addr().AsSlice()}
	u := &layers.UDP{SrcPort: layers.UDPPort(d.Port), DstPort: layers.UDPPort(d.To.Port())}
	u.SetNetworkLayerForChecksum(out)
	b.send(mac, layers.EthernetTypeIPv4, out, u, gopacket.Payload(d.Body))
	return nil
}

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

// TestBootServer is a client written by hand: it requests an address, and a file of several blocks, one of which has to
// be sent again.
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
		send(serverIP, 1000, u.SrcPort, gopacket.Payload{0, 4, 0, ack})
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
	if _, u = receive(); u.Payload[1] != 5 {
		t.Errorf("a file that is not there: %q", u.Payload)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wrong) > 0 || b.server.Again != 1 {
		t.Errorf("%d sent again, %q", b.server.Again, b.wrong)
	}
}
