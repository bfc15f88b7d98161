package responder

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// requests builds one frame of every kind that is answered, in several sizes, under no, one and two VLAN tags. They are
// made and sent here, not by a kernel, so that every checksum in them is whole.
func requests(t *testing.T, mac net.HardwareAddr) (frames [][]byte, replies map[string]int) {
	t.Helper()
	asker := net.HardwareAddr{2, 0, 0, 0, 0, 0x51}
	a4, o4 := net.IP{10, 77, 0, 9}, net.ParseIP(ours4).To4()
	a6, o6 := net.ParseIP("fd77::9"), net.ParseIP(ours6)
	replies = map[string]int{}

	add := func(kind string, dst net.HardwareAddr, ether layers.EthernetType, rest ...gopacket.SerializableLayer) {
		for _, tags := range [][]layers.EthernetType{{}, {layers.EthernetTypeDot1Q},
			{layers.EthernetTypeQinQ, layers.EthernetTypeDot1Q}} {
			types := append(tags, ether)
			stack := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: asker, DstMAC: dst, EthernetType: types[0]}}
			for i := range tags {
				stack = append(stack, &layers.Dot1Q{VLANIdentifier: uint16(5 + i), Priority: 3, Type: types[i+1]})
			}
			b := gopacket.NewSerializeBuffer()
			must.OK(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
				append(stack, rest...)...))
			frames = append(frames, b.Bytes())
			replies[kind]++
		}
	}
	ip4 := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 9, Protocol: p, SrcIP: a4, DstIP: o4}
	}
	ip6 := func(p layers.IPProtocol, hops uint8, dst net.IP) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: p, SrcIP: a6, DstIP: dst}
	}
	udp := func(port layers.UDPPort, ip gopacket.NetworkLayer) *layers.UDP {
		u := &layers.UDP{SrcPort: 40000, DstPort: port}
		u.SetNetworkLayerForChecksum(ip)
		return u
	}
	for _, size := range []int{0, 1, 17, 56, 57, 1001, 1400} {
		data := gopacket.Payload(bytes.Repeat([]byte{0xfe, byte(size), 0x81}, size/3+1)[:size])
		v4 := ip4(layers.IPProtocolICMPv4)
		add("icmp", mac, layers.EthernetTypeIPv4, v4, &layers.ICMPv4{TypeCode: 0x0800, Id: 77, Seq: uint16(size)}, data)
		v6 := ip6(layers.IPProtocolICMPv6, 64, o6)
		icmp6 := &layers.ICMPv6{TypeCode: 0x8000}
		icmp6.SetNetworkLayerForChecksum(v6)
		add("icmpv6", mac, layers.EthernetTypeIPv6, v6, icmp6,
			&layers.ICMPv6Echo{Identifier: 77, SeqNumber: uint16(size)}, data)
		v4, v6 = ip4(layers.IPProtocolUDP), ip6(layers.IPProtocolUDP, 64, o6)
		add("udp", mac, layers.EthernetTypeIPv4, v4, udp(7, v4), data)
		add("udp", mac, layers.EthernetTypeIPv6, v6, udp(7, v6), data)
		if size >= 44 { // a STAMP test packet's length
			add("udp", mac, layers.EthernetTypeIPv4, v4, udp(862, v4), data)
			add("udp", mac, layers.EthernetTypeIPv6, v6, udp(862, v6), data)
		}
	}
	add("arp", layers.EthernetBroadcast, layers.EthernetTypeARP,
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4,
			HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest, SourceHwAddress: asker,
			SourceProtAddress: a4,
			DstHwAddress:      make([]byte, 6), DstProtAddress: o4})
	group := ip6(layers.IPProtocolICMPv6, 255, net.ParseIP("ff02::1:ff00:2"))
	ns := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	ns.SetNetworkLayerForChecksum(group)
	add("icmpv6", net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 2}, layers.EthernetTypeIPv6, group, ns,
		&layers.ICMPv6NeighborSolicitation{TargetAddress: o6,
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: asker}}})
	return frames, replies
}

// tshark, an independent program, finds every checksum correct in every kind of reply.
func TestChecksumsByTshark(t *testing.T) {
	needs.Programs(t, "tcpdump")
	needs.Programs(t, "tshark")
	for _, driver := range socketDrivers {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver)
			mac := must.Get(net.ParseMAC(regexp.MustCompile(`mac=(\S+)`).FindStringSubmatch(p.Ready)[1]))(t)
			frames, want := requests(t, mac)
			file := w.capture(t, frames)

			out := must.Get(exec.Command("tshark", "-r", file, "-o", "ip.check_checksum:TRUE", "-o",
				"udp.check_checksum:TRUE",
				"-Y", "eth.dst==02:00:00:00:00:51", "-T", "fields", "-e", "frame.protocols", "-e", "ip.checksum.status",
				"-e", "udp.checksum.status", "-e", "icmp.checksum.status", "-e", "icmpv6.checksum.status").Output())(t)
			got := map[string]int{}
			for line := range strings.Lines(string(out)) {
				f := strings.Split(strings.TrimRight(line, "\n"), "\t")
				protocols := strings.Split(f[0], ":")
				for _, kind := range []string{"icmpv6", "icmp", "udp", "arp"} {
					if !slices.Contains(protocols, kind) {
						continue
					}
					got[kind]++
					status := map[string]string{"ip": f[1], "udp": f[2], "icmp": f[3], "icmpv6": f[4]}
					for layer, s := range status {
						if present := slices.Contains(protocols, layer); present && s != "1" || !present && s != "" {
							t.Errorf("%s checksum has status %q, want 1 (good): %s", layer, s, line)
						}
					}
					break
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("replies %v, want %v", got, want)
			}
			checkSTAMP(t, file)
		})
	}
}

// checkSTAMP has tshark's dissector of TWAMP-Test packets, whose layout STAMP kept, read the replies in a capture. The
// sender's data comes back in the sender's fields. The reflector's own are the sender's sequence number (RFC 8762
// §4.3.1, stateless), an error estimate with a multiplier, and two timestamps: received before sent, and sent before it
// was captured (by another clock of this machine).
func checkSTAMP(t *testing.T, file string) {
	t.Helper()
	args := []string{"-r", file, "-d", "udp.port==862,twamp.test", "-Y", "twamp.test && eth.dst==02:00:00:00:00:51",
		"-T", "fields", "-E", "occurrence=f",
		"-e", "frame.time", "-e", "ip.version", "-e", "udp.payload"}
	for _, f := range []string{"seq_number", "sender_seq_number", "error_estimate.multiplier", "sender_error_estimate",
		"sender_ttl", "receive_timestamp", "timestamp"} {
		args = append(args, "-e", "twamp.test."+f)
	}
	cmd := exec.Command("tshark", args...)
	cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C")
	out := must.Get(cmd.Output())(t)
	at := func(s string) time.Time {
		v, err := time.Parse("Jan 2, 2006 15:04:05.999999999 MST", strings.Join(strings.Fields(s), " "))
		if err != nil {
			t.Error(err)
		}
		return v
	}
	// the responder's time follows the kernel's ten times a second, which may be set meanwhile
	const slack = time.Millisecond
	n := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		sent := []byte{0xfe, byte(len(f[2]) / 2), 0x81} // the repeated padding of request's packets
		number := func(from, n int) (v uint64) {
			for i := range n {
				v = v<<8 | uint64(sent[(from+i)%3])
			}
			return v
		}
		ttl := "64"
		if f[1] == "4" {
			ttl = "9"
		}
		seq, estimate := fmt.Sprint(number(0, 4)), fmt.Sprint(number(12, 2))
		if f[3] != seq || f[4] != seq || f[6] != estimate || f[7] != ttl || f[5] == "0" {
			t.Errorf("sequence numbers %s and %s, want %s; sender's error estimate %s, want %s; TTL %s, want %s; multiplier %s",
				f[3], f[4], seq, f[6], estimate, f[7], ttl, f[5])
		}
		captured, received, reflected := at(f[0]), at(f[8]), at(f[9])
		if reflected.Before(received) || captured.Add(slack).Before(reflected) || captured.Sub(received) > time.Hour {
			t.Errorf("received %v, reflected %v, captured %v", received, reflected, captured)
		}
		n++
	}
	if n == 0 {
		t.Error("tshark found no STAMP packet")
	}
}

// capture sends the frames and captures the wire until every one is answered.
func (w *wire) capture(t *testing.T, frames [][]byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "replies.pcap")
	dump := exec.Command("tcpdump", "-i", peer, "-Z", "root", "-U", "--immediate-mode", "-s", "2048", "-B", "8192",
		"-w", file, "ether", "dst", "02:00:00:00:00:51")
	said := &programs.Output{}
	dump.Stderr = said
	var fd int
	w.there.do(t, func() {
		must.OK(t, dump.Start())
		l := must.Get(net.InterfaceByName(peer))(t)
		fd = must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))(t)
		must.OK(t, unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: l.Index}))
	})
	defer unix.Close(fd)
	defer func() {
		dump.Process.Signal(unix.SIGINT)
		dump.Wait()
	}()
	await.Until(t, "tcpdump", func() bool { return strings.Contains(said.String(), "listening on") }, said.String)
	for _, f := range frames {
		must.Get(unix.Write(fd, f))(t)
	}
	var n int
	var err error
	await.Until(t, "a reply to each request", func() bool {
		n, err = packets(file)
		return n == len(frames)
	}, func() string { return fmt.Sprintf("%d replies to %d requests (%v)", n, len(frames), err) })
	return file
}

// packets counts the packets of a capture, up to the end or to one that is not written yet: err says which.
func packets(file string) (n int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		return 0, err
	}
	for ; err == nil; n++ {
		_, _, err = r.ReadPacketData()
	}
	return n - 1, err
}
