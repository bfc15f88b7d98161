package mlx4

import (
	"encoding/binary"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// Fields that SET_PORT sets on an InfiniBand port (Linux, port.c: mlx4_SET_PORT), with opcode modifier 0.
const (
	setChangeMTU = 1 << 22
	setChangeVL  = 1 << 21
	setMTU       = 12 // here up
	setVLs       = 4

	mostVLs = 8

	statusLimits Status = 0x08

	ipoibMTU = 2048 - ib.EncapSize // default MTU of packets: that of groups that subnet managers create
)

// MAD_IFC's opcode modifier: neither M_Key nor B_Key is checked.
const madTrusted = 3

// learnSubnetPort reads the capabilities of an InfiniBand port, and refuses options that make no sense there.
func (d *Device) learnSubnetPort() error {
	c, o := &d.caps, &d.card.Options
	switch {
	case o.Queues > 1:
		return d.card.Errorf("%d queue pairs are asked for: port %d is set to InfiniBand, where IPoIB has one (cpu.cores: one core)", o.Queues, d.port)
	case o.MAC != [6]byte{}:
		return d.card.Errorf("a MAC is asked for: port %d is set to InfiniBand, where interfaces have none (nic.mac)",
			d.port)
	case o.Match != nil && o.Match.VLANs != nil:
		return d.card.Errorf("VLANs are asked for: port %d is set to InfiniBand, which has partitions in their place (respond.vlans)", d.port)
	case c.ibMTU == 0:
		return d.card.Errorf("%w: QUERY_PORT tells no MTU that InfiniBand has", nic.ErrHardware)
	}
	if !d.mtuAsked {
		d.card.MTU = min(ipoibMTU, ib.MTUOf(c.ibMTU))
	}
	if most := ib.MTUOf(c.ibMTU); d.card.MTU > most {
		return d.card.Errorf("%w: MTU %d is asked for, port %d of InfiniBand takes up to %d", nic.ErrFrameSize,
			d.card.MTU, d.port, most)
	}
	if d.subnet == nil {
		d.subnet = newSubnet(d)
	}
	return nil
}

// mad hands a management datagram to the port itself, and returns its answer.
func (d *Device) mad(request []byte) ([]byte, error) {
	m, _, err := d.commands.exec(command{op: opMADIFC, opMod: madTrusted, modifier: d.port, in: request, out: true})
	return m, err
}

// startSubnetPort configures the port and enables it. From then on the subnet manager controls it.
func (d *Device) startSubnetPort() error {
	info, err := d.portInfo()
	if err != nil {
		return err
	}
	for vls := uint32(mostVLs); ; vls /= 2 { // as many lanes as the port supports
		in := make(mailbox, 0x40)
		in.set32(0, setChangeMTU|setChangeVL|uint32(ib.MTUCode(d.caps.ibMTU))<<setMTU|vls<<setVLs)
		in.set32(4, info.Capabilities)
		err := d.commands.run(command{op: opSetPort, modifier: d.port, in: in})
		if err == nil {
			break
		}
		if vls == 1 || !says(err, statusLimits) {
			return err
		}
	}
	return d.initPort()
}

func (d *Device) portInfo() (ib.PortInfo, error) {
	b, err := d.mad(ib.Query(ib.AttrPortInfo, d.port, 1))
	if err != nil {
		return ib.PortInfo{}, err
	}
	return ib.ParsePortInfo(b, d.port, 1)
}

// datagramContext is the context of a QP of this port that sends and receives by one page of doorbells.
func (d *Device) datagramContext(service, qpn, sendCQ, recvCQ, uar, qkey uint32) mailbox {
	in := d.qpContext(qpn, sendCQ, uar)
	in.set32(qpcFlags, service|migrated)
	in.set8(qpcAckTO, 0) // link type InfiniBand (Linux, __mlx4_ib_modify_qp: set for Ethernet ports only)
	const longest = 13   // log of a message, as Linux has it for datagrams
	in.set8(qpcMTU, ib.MTUCode(maxPayload)<<5|longest)
	in.set32(qpcRecvCQ, recvCQ)
	in.set32(qpcQKey, qkey)
	in.set32(qpcParam3, 0)
	return in
}

// createDatagrams creates the rings of IPoIB's queue pair. The QP is started when its Q_Key is known from the subnet.
func (d *Device) createDatagrams() error {
	q := d.datagrams
	if q == nil {
		q = &DatagramQueue{}
		d.datagrams, d.queues = q, []*Queue{&q.Queue}
	}
	m := &d.icm
	q.uar = firstUAR
	q.rxQPN, q.txQPN, q.rxCQN, q.txCQN = m.rxQP, m.rxQP, m.cq, m.cq+1
	d.layout(&q.Queue)
	q.stride = kit.Stride(slotPayload + maxPayload + slack)
	q.size = ib.HeaderSize + uint32(ib.MTUOf(maxPayload))
	if q.inlineMax = 0; d.pushBlocks > 1 {
		q.inlineMax = inlineNext * (d.pushBlocks - 1)
	}
	if d.own.MaxInline > 0 {
		q.inlineMax = min(q.inlineMax, uint32(max(0, d.own.MaxInline-extra)))
	}
	q.portPD = swap(d.port<<24 | d.pd)
	mac := ib.Station(0, q.rxQPN)
	d.card.MAC = mac
	q.own = newStation(mac)
	records, err := d.card.Block(3*64, 64)
	if err != nil {
		return err
	}
	record := func(line int) *uint32 { return (*uint32)(unsafe.Pointer(&records.Bytes[64*line])) }
	q.rqRec, q.rxCQRec, q.txCQRec = record(0), record(1), record(2)
	if q.rxCQ, err = d.createCQ(q.rxCQN, q.mask+1, records.IOVA+64); err != nil {
		return err
	}
	if q.txCQ, err = d.createCQ(q.txCQN, q.txMask+1, records.IOVA+2*64); err != nil {
		return err
	}
	sends := int(q.txMask+1) * txbb // of the two rings, the one with wider entries comes first
	b, err := d.card.Block(sends+int(q.mask+1)*rxWQE, 4096)
	if err != nil {
		return err
	}
	q.wq = mmio.SendRing{Base: kit.Pointer(b), Mask: q.txMask}
	q.rq = unsafe.Add(q.wq.Base, sends)
	in := d.datagramContext(serviceUD, q.rxQPN, q.txCQN, q.rxCQN, q.uar, 0)
	in.set8(qpcRQ, sizeStride(q.mask+1, rxWQE))
	in.set8(qpcSQ, sizeStride(q.txMask+1, txbb))
	in.set64(qpcRecord, records.IOVA)
	if err := d.place(in[qpcPlace:], b); err != nil {
		return err
	}
	q.sendContext = in
	if err := d.buffers(&q.Queue, true); err != nil {
		return err
	}
	for slot := range q.mask + 1 {
		*(*mlxkit.DataSegment)(unsafe.Add(q.rq, slot*rxWQE)) = mlxkit.NewData(ib.GRHSize+maxPayload, q.lkey,
			q.iova+uint64(slot*q.stride)+slotGRH)
	}
	if err := d.doorbell(&q.Queue); err != nil {
		return err
	}
	q.reset()
	return nil
}

// subnetCounts reads the port's counters: packets and bytes with all headers, including management.
func (d *Device) subnetCounts() (t nic.Stats, err error) {
	ask := func(a ib.Attribute) (ib.PortCounters, error) {
		b, err := d.mad(ib.QueryCounters(a, uint8(d.port), 2))
		if err != nil {
			return ib.PortCounters{}, err
		}
		return ib.ParseCounters(b, a, 2)
	}
	c, err := ask(ib.AttrPortCounters)
	if err != nil {
		return t, err
	}
	wide, err := ask(ib.AttrPortCountersExtended)
	if err == nil {
		c.RxPackets, c.RxBytes, c.TxPackets, c.TxBytes = wide.RxPackets, wide.RxBytes, wide.TxPackets, wide.TxBytes
	} else if d.commands.dead.Load() != nil {
		return t, err
	}
	return nic.Stats{
		RxFrames: c.RxPackets, RxBytes: c.RxBytes, TxFrames: c.TxPackets, TxBytes: c.TxBytes, RxErrors: c.RxErrors,
		TxErrors: c.TxDiscards,
		Extra: map[string]uint64{"vl15_dropped": c.VL15Dropped, "symbol_errors": c.Symbols,
			"link_downed": c.LinkDowned, "rx_switch_errors": c.RxSwitchErrors},
	}, nil
}

// What changed according to a port management event, in PORT_INFO (Linux, MLX4_EQ_PORT_INFO_*).
const (
	pmcGUIDs    = 0x14 // subtypes
	pmcPortInfo = 0x15
	pmcPKeys    = 0x16

	clientReregister = 1 << 3 // all memberships must be renewed
)

// portManagement takes an event of the port's management.
func (d *Device) portManagement(entry []byte) {
	if d.subnet == nil || uint32(entry[eqeData+3]) != d.port {
		return
	}
	d.events.subnetChanges.Add(1)
	again := entry[eqeSubtype] == pmcPortInfo && binary.BigEndian.Uint32(entry[eqeData+8:])&clientReregister != 0
	if again {
		d.card.Log.Info("the subnet manager asks for memberships to be made again")
	}
	d.subnet.changed(again || entry[eqeSubtype] == pmcPKeys)
}
