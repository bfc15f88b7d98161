package lab

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

func sized(top int) (all []int) {
	for s := 60; s <= min(top, 300); s++ {
		all = append(all, s)
	}
	for s := 301; s <= top; s += 1 + s/40 {
		all = append(all, s)
	}
	return append(all, top-1, top)
}

func echoes(port, top, flood int) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		e, mac, sizes := p.ends[port], p.macs[port], sized(top)
		size := func(i int) int { return sizes[i%len(sizes)] }
		request := func(i int) []byte { return ping(i, mac, size(i)) }
		check := func(f []byte) (int, error) { return pong(f, mac, size) }
		if err := e.stream(e, len(sizes), 1, request, check); err != nil {
			return err
		}
		if err := e.stream(e, flood, 64, request, check); err != nil {
			return fmt.Errorf("flood: %w", err)
		}
		p.Logf("%d echo replies of 60 to %d bytes", len(sizes)+flood, top)
		return nil
	}
}

// cost counts what the replies to a thousand pings of 60 bytes cost function 0 on the bus, one at a time.
func cost(p *pmdRun) error {
	const n = 1000
	port, mac, size := p.functions[0].port, p.macs[0], func(int) int { return 60 }
	check := func(f []byte) (int, error) { return pong(f, mac, size) }
	ping60 := func(i int) []byte { return ping(i, mac, 60) }
	if err := p.ends[0].stream(p.ends[0], 200, 1, ping60, check); err != nil { // into the steady state
		return err
	}
	before := port.Counts()
	if err := p.ends[0].stream(p.ends[0], n, 1, ping60, check); err != nil {
		return err
	}
	p.costs = append(p.costs, port.Counts().Since(before))
	return nil
}

// compare holds our replies against testpmd's: together no more transactions, and no reads of memory on the way to the
// wire. The guest has no write combining, so that a store of 64 bytes, one write on a real bus, comes as eight. Ten
// transactions are allowed for each interrupt, which only Linux's driver uses. On a busy host the proof of pushes may
// fail, Linux's own at its start or the responder's; log says so, and replies are then read from memory.
func (p *pmdRun) compare(t *testing.T, log []string) {
	must.Equal(t, len(p.costs), 2, "%d programs were measured")
	theirs, ours := p.costs[0], p.costs[1]
	t.Logf("on the bus, for 1000 replies, the kernel's driver included: testpmd %+v, responder %+v", theirs, ours)
	if ours.MMIOWrite/8+ours.DMARead+ours.DMAWrite > theirs.MMIOWrite+theirs.DMARead+theirs.DMAWrite+
		10*ours.Interrupts {
		t.Errorf("the responder's replies cost more than testpmd's: %+v, %+v", ours, theirs)
	}
	pushes := strings.Contains(strings.Join(log, "\n"), `push="blueflame`)
	for _, l := range log {
		if !pushes && strings.Contains(l, "fell back") {
			t.Log(l)
		}
	}
	if pushes && ours.DMARead >= 1000 {
		t.Errorf("the responder's replies are not pushed into the card, which read memory %d times", ours.DMARead)
	}
}

// pmdWindow is the number of frames in flight: testpmd drops frames that do not fit into a ring of 256, and drivers
// free descriptors late.
const pmdWindow = 128

func forwards(n, top int) func(p *pmdRun) error { return forwardsWithin(n, top, pmdWindow) }

func forwardsWithin(n, top, window int) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		sizes := sized(top)
		for _, from := range []int{0, 1} {
			start := time.Now()
			frames := make([][]byte, len(sizes))
			for i := range frames {
				frames[i] = plain(i, p.macs[from], sizes[i])
			}
			stamp := func(i int) []byte {
				f := frames[i%len(frames)]
				copy(f[6:12], numbered(i))
				return f
			}
			err := p.ends[from].stream(p.ends[1-from], n, window, stamp, func(f []byte) (int, error) {
				i := numberOf(f[6:])
				if i >= 0 && !bytes.Equal(f, stamp(i)) {
					return i, fmt.Errorf("is not as it was sent: %x", head(stamp(i)))
				}
				return i, nil
			})
			if err != nil {
				return fmt.Errorf("from function %d: %w", from, err)
			}
			p.Logf("%d frames of 60 to %d bytes forwarded from function %d, %.0f a second", n, top, from,
				float64(n)/time.Since(start).Seconds())
		}
		return nil
	}
}

func says(pattern string) func(p *pmdRun) error {
	re := regexp.MustCompile(pattern)
	return func(p *pmdRun) error {
		if !slices.ContainsFunc(p.said, re.MatchString) {
			return fmt.Errorf("testpmd does not say %q", pattern)
		}
		return nil
	}
}

func inTurn(all ...func(p *pmdRun) error) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		for _, f := range all {
			if err := f(p); err != nil {
				return err
			}
		}
		return nil
	}
}

func cable(port int, up bool) func(p *pmdRun) error {
	return func(p *pmdRun) error { p.ends[port].SetUp(up); return nil }
}

// rssFlows is how many flows are sent: the probability that all use the same one of two queues is 2^-63.
const rssFlows = 64

func rssFlow(i int, dst net.HardwareAddr) []byte {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 9, byte(i), byte(3 * i)},
		DstIP: nearIP}
	u := &layers.UDP{SrcPort: layers.UDPPort(1000 + 77*i), DstPort: 9}
	u.SetNetworkLayerForChecksum(ip)
	return packet(&layers.Ethernet{SrcMAC: numbered(i), DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}, ip, u,
		pattern(i, 40))
}

func flows(p *pmdRun) error {
	return p.ends[0].stream(p.ends[1], rssFlows, 8, func(i int) []byte { return rssFlow(i, p.macs[0]) },
		func(f []byte) (int, error) { return numberOf(f), nil })
}

var (
	seenQueue = regexp.MustCompile(`^port 0/queue (\d+): received`)
	seenFlow  = regexp.MustCompile(
		`^ *src=02:EE:00:00:00:([0-9A-F]{2}) .* RSS hash=0x([0-9a-f]+) .*Receive queue=0x([0-9a-f]+)`)
	hashKey = regexp.MustCompile(`^([0-9A-Fa-f]{80})$`)
)

// hashed compares the hash of each flow with the Toeplitz hash of its addresses (and its ports, if ports is set) under
// the key that testpmd shows. It requires that flows with the same hash use the same queue, and that more than one
// queue is used.
func hashed(ports bool) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		var key []byte
		for _, l := range p.said {
			if m := hashKey.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
				key, _ = hex.DecodeString(m[1])
			}
		}
		if key == nil {
			return errors.New("testpmd shows no key of 40 bytes")
		}
		queues, seen := map[uint64]int{}, 0
		for _, l := range p.said {
			m := seenFlow.FindStringSubmatch(l)
			if m == nil {
				continue
			}
			i, _ := strconv.ParseUint(m[1], 16, 8)
			got, _ := strconv.ParseUint(m[2], 16, 32)
			queue, _ := strconv.ParseUint(m[3], 16, 16)
			f := rssFlow(int(i), p.macs[0])
			input := f[26:34]
			if ports {
				input = f[26:38]
			}
			if want := toeplitz(key, input); uint32(got) != want {
				return fmt.Errorf("flow %d came with hash %08x; Toeplitz of %x is %08x", i, got, input, want)
			}
			queues[queue]++
			seen++
		}
		if seen != rssFlows || len(queues) < 2 {
			return fmt.Errorf("%d flows of %d came with a hash, on queues %v", seen, rssFlows, queues)
		}
		p.Logf("%d flows on queues %v, each with the hash of its addresses%s", seen, queues,
			map[bool]string{true: " and ports"}[ports])
		return nil
	}
}

func toeplitz(key, input []byte) (h uint32) {
	window := binary.BigEndian.Uint32(key)
	for i, b := range input {
		for bit := range 8 {
			if b<<bit&0x80 != 0 {
				h ^= window
			}
			window = window<<1 | uint32(key[i+4]<<bit>>7&1)
		}
	}
	return h
}

// kind is a packet type whose checksums a card checks and inserts.
type kind struct {
	name string
	ip4  bool
	l4   layers.IPProtocol
	sum  int // position of the UDP or TCP checksum in the frame
}

func ipv4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Id: 5, Protocol: proto, SrcIP: farIP, DstIP: nearIP}
}

func udp(over gopacket.NetworkLayer) *layers.UDP {
	u := &layers.UDP{SrcPort: 4000, DstPort: 4001}
	u.SetNetworkLayerForChecksum(over)
	return u
}

func tcp(over gopacket.NetworkLayer) *layers.TCP {
	u := &layers.TCP{SrcPort: 4000, DstPort: 4001, Seq: 1000, ACK: true, PSH: true, Window: 1000}
	u.SetNetworkLayerForChecksum(over)
	return u
}

var kinds = []kind{
	{"UDP in IPv4", true, layers.IPProtocolUDP, 40},
	{"TCP in IPv4", true, layers.IPProtocolTCP, 50},
	{"UDP in IPv6", false, layers.IPProtocolUDP, 60},
	{"TCP in IPv6", false, layers.IPProtocolTCP, 70},
}

func (k *kind) frame(i int, dst net.HardwareAddr, payload gopacket.Payload) []byte {
	e := &layers.Ethernet{SrcMAC: numbered(i), DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	} = ipv4(k.l4)
	if !k.ip4 {
		e.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: k.l4, SrcIP: farIP6, DstIP: nearIP6}
	}
	if k.l4 == layers.IPProtocolTCP {
		return packet(e, ip, tcp(ip), payload)
	}
	return packet(e, ip, udp(ip), payload)
}

// Every third frame has a wrong IPv4 checksum, and every third one a wrong UDP or TCP checksum.
const (
	csumFrames = 240
	badIP      = csumFrames / 3 / 2 // half of the kinds are IPv4
	badL4      = csumFrames / 3
)

// checksums sends frames with right and wrong checksums, for which testpmd's csum engine has the card insert new ones.
func checksums(p *pmdRun) error {
	right := func(i int) []byte {
		payload := pattern(i, 30+5*i)
		binary.BigEndian.PutUint32(payload, uint32(i))
		return kinds[i%len(kinds)].frame(i, p.macs[0], payload)
	}
	err := p.ends[0].stream(p.ends[1], csumFrames, 16, func(i int) []byte {
		f, k := right(i), &kinds[i%len(kinds)]
		switch {
		case i/len(kinds)%3 == 0 && k.ip4:
			f[24] ^= 0x55
		case i/len(kinds)%3 == 1:
			f[k.sum] ^= 0x55
		}
		return f
	}, func(f []byte) (int, error) {
		i := -1
		if a, err := faults(f); err != nil {
			return i, err
		} else if l := a.ApplicationLayer(); l != nil && len(l.LayerContents()) >= 4 {
			i = int(binary.BigEndian.Uint32(l.LayerContents()))
		}
		if i >= 0 && i < csumFrames && !bytes.Equal(f[12:], right(i)[12:]) {
			return i, fmt.Errorf("is not what was sent, with right checksums: %x", right(i))
		}
		return i, nil
	})
	if err == nil {
		p.Logf("%d frames of %d kinds with checksums that the card put in", csumFrames, len(kinds))
	}
	return err
}

func segments(mss int) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		came := 0
		for i := range 40 {
			k := &kinds[1+2*(i%2)]
			data := pattern(i, 1400-i)
			p.ends[0].send(k.frame(i, p.macs[0], data))
			var all []byte
			for start := time.Now(); len(all) < len(data); {
				f := p.ends[1].recv()
				if f == nil {
					if time.Since(start) > patience {
						return fmt.Errorf("%d bytes of %d came in %v", len(all), len(data), patience)
					}
					nap()
					continue
				}
				a, err := faults(f)
				if err != nil {
					return fmt.Errorf("segment of %s: %w: %x", k.name, err, head(f))
				}
				t, _ := a.Layer(layers.LayerTypeTCP).(*layers.TCP)
				if t == nil || len(t.Payload) > mss || t.Seq != uint32(1000+len(all)) ||
					t.PSH != (len(all)+len(t.Payload) == len(data)) {
					return fmt.Errorf("segment of %s behind %d bytes of %d: %+v", k.name, len(all), len(data), t)
				}
				all = append(all, t.Payload...)
				came++
			}
			if !bytes.Equal(all, data) {
				return fmt.Errorf("segments of %s have other bytes than what was sent", k.name)
			}
		}
		p.Logf("40 TCP packets cut into %d segments of at most %d bytes", came, mss)
		return nil
	}
}

func vlans(in, out int) func(p *pmdRun) error {
	tagged := func(i, id int, dst net.HardwareAddr) []byte {
		ip := ipv4(layers.IPProtocolUDP)
		return packet(&layers.Ethernet{SrcMAC: numbered(i), DstMAC: dst, EthernetType: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: uint16(id), Type: layers.EthernetTypeIPv4}, ip, udp(ip), pattern(i, 100+i))
	}
	return func(p *pmdRun) error {
		err := p.ends[0].stream(p.ends[1], 100, 16, func(i int) []byte { return tagged(i, in, p.macs[0]) },
			func(f []byte) (int, error) {
				i := numberOf(f)
				if i >= 0 && i < 100 && !bytes.Equal(f[12:], tagged(i, out, p.macs[0])[12:]) {
					return i, fmt.Errorf("is not what was sent, with tag %d in place of %d: %x", out, in,
						tagged(i, out, p.macs[0]))
				}
				return i, nil
			})
		if err == nil {
			p.Logf("100 frames lost tag %d and got tag %d", in, out)
		}
		return err
	}
}

func xstats(port int) func(p *pmdRun) error {
	return func(p *pmdRun) error {
		shown := numbers(p.said)
		want := map[string]uint64{"rx_missed_errors": 0, "rx_errors": 0, "tx_errors": 0, "rx_mbuf_allocation_errors": 0}
		switch m := p.functions[port].model.(type) {
		case *ixgbesim.Model:
			k := m.Counters()
			want["rx_good_packets"], want["tx_good_packets"], want["rx_good_bytes"], want["tx_good_bytes"] = k.RxFrames,
				k.TxFrames, k.RxBytes, k.TxBytes
			want["rx_total_packets"], want["tx_total_packets"] = k.RxFrames, k.TxFrames
			// all queues count in set 0, because RQSMR and TQSM are zero
			want["rx_q0_packets"], want["tx_q0_packets"] = k.RxFrames, k.TxFrames
			want["rx_l3_l4_xsum_error"] = map[int]uint64{0: badIP + badL4}[port]
		case *enasim.Model:
			k := m.Counters()
			want["rx_good_packets"], want["tx_good_packets"], want["rx_good_bytes"], want["tx_good_bytes"] = k.RxFrames,
				k.TxFrames, k.RxBytes, k.TxBytes
		case *mlx5sim.Model:
			k, was := m.Counters(), p.mlx5[port]
			rx, rxBytes, tx, txBytes := k.RxFrames-was.RxFrames, k.RxBytes-was.RxBytes, k.TxFrames-was.TxFrames,
				k.TxBytes-was.TxBytes
			want["rx_good_packets"], want["tx_good_packets"], want["rx_good_bytes"], want["tx_good_bytes"] = rx, tx,
				rxBytes, txBytes // the driver's own counters
			want["rx_unicast_packets"], want["tx_unicast_packets"], want["rx_unicast_bytes"],
				want["tx_unicast_bytes"] = rx, tx, rxBytes, txBytes // the vport's counters
			want["rx_phy_packets"], want["tx_phy_packets"], want["rx_phy_bytes"], want["tx_phy_bytes"] = rx, tx,
				rxBytes+4*rx, txBytes+4*tx // with FCS
			want["rx_out_of_buffer"] = k.OutOfBuffer - was.OutOfBuffer
		}
		if d := catalogue.Differ(shown, want); len(d) > 0 {
			return fmt.Errorf("xstats and model disagree: %s", strings.Join(d, "; "))
		}
		p.Logf("%d statistics of function %d agree with the model: %d frames in, %d out", len(want), port,
			want["rx_good_packets"], want["tx_good_packets"])
		return nil
	}
}

func countsFromHere(p *pmdRun) error {
	for i, f := range p.functions {
		p.mlx5[i] = f.model.(*mlx5sim.Model).Counters()
	}
	return nil
}

// zipped checks whether function 0 has compressed completions since the last check.
func zipped(want bool) pmdStep {
	return pmdStep{name: "zipped", commands: []string{"show port stats 0"}, do: func(p *pmdRun) error {
		k := p.functions[0].model.(*mlx5sim.Model).Counters()
		n := k.Compressed - p.zipped
		p.zipped = k.Compressed
		p.Logf("%d completions of receive came in compressed sessions", n)
		if want != (n > 0) {
			return errors.New("completions were not compressed as was asked for")
		}
		return nil
	}}
}

// pushed checks how ENA's descriptors and frames were sent since the last check: stored into the device's memory (LLQ),
// or read by it. For frames longer than header bytes, the remainder is read; if header is 0, pushed only checks that
// something is read.
func pushed(llq bool, header int) pmdStep {
	return pmdStep{name: "pushed", commands: []string{"show port stats 0"}, do: func(p *pmdRun) error {
		k, was := p.functions[0].model.(*enasim.Model).Counters(), p.ena
		tall := p.ends[0].tall - p.tall
		p.ena, p.tall = k, p.ends[0].tall
		reads, rest, frames := k.TxDescReads-was.TxDescReads, k.TxPayloadReads-was.TxPayloadReads,
			k.TxFrames-was.TxFrames
		p.Logf("%d frames sent, %d of them longer than 224 bytes: %d reads of descriptors, %d of frames", frames, tall,
			reads, rest)
		if frames == 0 || llq != (reads == 0) || header == 224 && rest != uint64(tall) {
			return errors.New("frames did not leave in the way that was asked for")
		}
		return nil
	}}
}
