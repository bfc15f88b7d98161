package lab

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
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
	b := &bootServer{wire: w, start: time.Now(), asked: make(chan string, 100), stop: make(chan struct{}),
		stopped: make(chan struct{})}
	b.server = boot.Server{Address: netip.AddrFrom4([4]byte(serverIP)), Client: netip.AddrFrom4([4]byte(clientIP)),
		Boot: first, Files: files,
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
			b.send(eth.SrcMAC, layers.EthernetTypeARP, &layers.ARP{AddrType: layers.LinkTypeEthernet,
				Protocol:      layers.EthernetTypeIPv4,
				HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPReply, SourceHwAddress: serverMAC,
				SourceProtAddress: serverIP,
				DstHwAddress:      arp.SourceHwAddress, DstProtAddress: arp.SourceProtAddress})
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
	d, err := b.server.Take(uint16(udp.DstPort), netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.SrcIP.To4())),
		uint16(udp.SrcPort)), udp.Payload)
	if err != nil || d == nil {
		return err
	}
	mac := eth.SrcMAC
	if udp.DstPort == boot.DHCPPort {
		mac = layers.EthernetBroadcast
	}
	out := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: serverIP,
		DstIP: d.To.Addr().AsSlice()}
	u := &layers.UDP{SrcPort: layers.UDPPort(d.Port), DstPort: layers.UDPPort(d.To.Port())}
	u.SetNetworkLayerForChecksum(out)
	b.send(mac, layers.EthernetTypeIPv4, out, u, gopacket.Payload(d.Body))
	return nil
}

func (b *bootServer) send(to net.HardwareAddr, typ layers.EthernetType, l ...gopacket.SerializableLayer) {
	e := &layers.Ethernet{SrcMAC: serverMAC, DstMAC: to, EthernetType: typ}
	b.wire.Send(time.Since(b.start), packet(append([]gopacket.SerializableLayer{e}, l...)...))
}
