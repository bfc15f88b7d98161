package verbs

import (
	"encoding/binary"
	"net/netip"

	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

// Flow selects received IPv4 frames.
type Flow struct {
	MAC  [6]byte    // destination
	To   netip.Addr // destination
	From netip.Addr // source; the zero Addr for any
	UDP  uint16     // destination port; 0 for all of IPv4
}

// Types of specifications (ib_flow_spec_type).
const (
	specEth  = 0x20
	specIPv4 = 0x30
	specUDP  = 0x41
)

// CreateFlow sends frames of a port to a raw-packet queue pair until it or the context is destroyed. Frames that match
// no flow go on to the kernel. Of the flows that match, the one with the lowest priority number counts.
func (c *Context) CreateFlow(qp uint32, port uint8, priority uint16, f Flow) error {
	eth := abi.FlowSpecEth{Type: specEth, Val: abi.FlowEthFilter{DstMAC: f.MAC},
		Mask: abi.FlowEthFilter{DstMAC: [6]uint8{255, 255, 255, 255, 255, 255}}}
	eth.Size = uint16(len(Bytes(&eth)))
	ip := abi.FlowSpecIPv4{Type: specIPv4}
	ip.Size = uint16(len(Bytes(&ip)))
	ip.Val.DstIP, ip.Mask.DstIP = network32(f.To), ^uint32(0)
	if f.From.IsValid() {
		ip.Val.SrcIP, ip.Mask.SrcIP = network32(f.From), ^uint32(0)
	}
	specs, n := append(append([]byte{}, Bytes(&eth)...), Bytes(&ip)...), uint8(2)
	if f.UDP != 0 {
		udp := abi.FlowSpecTCPUDP{Type: specUDP, Mask: abi.FlowTCPUDPFilter{DstPort: 0xFFFF}}
		udp.Size = uint16(len(Bytes(&udp)))
		binary.BigEndian.PutUint16(Bytes(&udp.Val.DstPort), f.UDP)
		specs, n = append(specs, Bytes(&udp)...), 3
	}
	q := abi.CreateFlow{QPHandle: qp, FlowAttr: abi.FlowAttr{Size: uint16(len(specs)), Priority: priority,
		NumOfSpecs: n, Port: port}}
	var r abi.CreateFlowResp
	return c.Write(abi.ExCmdCreateFlow|abi.CmdFlagExtended, append(append([]byte{}, Bytes(&q)...), specs...), Bytes(&r),
		nil, nil)
}

// network32 returns an IPv4 address in network byte order.
func network32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}
