package mlx5

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Receive steering (PRM, Flow Steering): a root table that matches our addresses and, with several queue pairs, a
// second table that chooses the hash by the type of the frame.
//
//	root   0..62   MAC            our address, broadcast, groups
//	      63       group bit      all multicast, if the wanted groups are unknown
//	type   0..1    UDP over IPv4, IPv6
//	       2..3    IPv4, IPv6
//	       4       all other frames
const (
	flowNICReceive = 0 // table_type

	rootLogSize  = 6
	rootGroupBit = 63
	typeLogSize  = 3

	matchOuter  = 1 // match_criteria_enable: outer headers
	forward     = 4 // action: FWD_DEST
	destTable   = 1 // destination_type
	destTIR     = 2
	etherTypeV4 = 0x0800
	etherTypeV6 = 0x86DD
	protoUDP    = 17

	listUnicast   = 0 // allowed_list_type
	listMulticast = 1
)

// match is the part of fte_match_set_lyr_2_4 that is used here: as a mask in a group, as a value in an entry.
type match struct {
	mac       [6]byte
	etherType uint32
	protocol  uint32
}

func (m match) put(at message) {
	copy(at[0x08:], m.mac[:])
	at.set("ethertype", 0x04, 15, 0, m.etherType).
		set("ip_protocol", 0x10, 31, 24, m.protocol)
}

var (
	broadcast = [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	groupBit  = [6]byte{1}
	maskMAC   = match{mac: broadcast}
)

// table is a flow table under construction.
type table struct {
	d  *Device
	id uint32
}

// createTable creates a flow table of 1<<logSize entries at a level of the receive side. Close destroys it.
func (d *Device) createTable(level, logSize uint32) (table, error) {
	in := command(opCreateFlowTable, 0, 0x40).set("table_type", 0x10, 31, 24, flowNICReceive)
	in.at(0x18).set("level", 0x00, 23, 16, level).set("log_size", 0x00, 7, 0, logSize)
	out, err := d.exec(in, 0x10)
	if err != nil {
		return table{}, err
	}
	t := table{d, out.get(0x08, 23, 0)}
	d.steps.Done(opDestroyFlowTable.String(), func() error { return d.run(t.command(opDestroyFlowTable, 0x40)) })
	return t, nil
}

func (t table) command(op opcode, size int) message {
	return command(op, 0, size).set("table_type", 0x10, 31, 24, flowNICReceive).set("table_id", 0x14, 23, 0, t.id)
}

// group creates a group of the entries first to last, which match on the bits set in mask.
func (t table) group(first, last uint32, mask match) (uint32, error) {
	in := t.command(opCreateFlowGroup, 0x400).
		set("start_flow_index", 0x1C, 31, 0, first).
		set("end_flow_index", 0x24, 31, 0, last)
	if mask != (match{}) {
		in.set("match_criteria_enable", 0x3C, 7, 0, matchOuter)
	}
	mask.put(in.at(0x40))
	out, err := t.d.exec(in, 0x10)
	if err != nil {
		return 0, err
	}
	id := out.get(0x08, 23, 0)
	t.d.steps.Done(opDestroyFlowGroup.String(), func() error {
		return t.d.run(t.command(opDestroyFlowGroup, 0x40).set("group_id", 0x18, 31, 0, id))
	})
	return id, nil
}

// set sends frames that match value to a destination.
func (t table) set(index, group uint32, value match, kind, id uint32) error {
	in := t.command(opSetFlowEntry, 0x340+8).set("flow_index", 0x20, 31, 0, index)
	ctx := in.at(0x40).
		set("group_id", 0x04, 31, 0, group).
		set("action", 0x0C, 15, 0, forward).
		set("destination_list_size", 0x10, 23, 0, 1)
	value.put(ctx.at(0x40))
	in.at(0x340).set("destination_type", 0x00, 31, 24, kind).set("destination_id", 0x00, 23, 0, id)
	if err := t.d.run(in); err != nil {
		return err
	}
	t.d.steps.Done(opDeleteFlowEntry.String(), func() error {
		return t.d.run(t.command(opDeleteFlowEntry, 0x40).set("flow_index", 0x20, 31, 0, index))
	})
	return nil
}

// steering is the traffic that is accepted besides our own address and broadcast.
type steering struct {
	groups       [][6]byte // multicast
	allMulticast bool
}

// listen chooses the multicast groups: those of the responder's addresses, or all if these are unknown or do not fit.
func (d *Device) listen(o nic.Options) {
	s := &d.steering
	s.groups, s.allMulticast = netif.Groups(o)
	if len(s.groups) > rootGroupBit-8 {
		s.groups, s.allMulticast = nil, true
	}
}

// startSteering creates TIRs and flow tables and connects the root to traffic.
func (d *Device) startSteering() error {
	for _, q := range d.queues {
		var err error
		if q.tir, err = d.directTIR(q.rqn); err != nil {
			return err
		}
	}
	kind, id := uint32(destTIR), d.queues[0].tir
	if len(d.queues) > 1 && !d.own.NoSteering {
		switch types, err := d.startRSS(); {
		case err == nil:
			kind, id = destTable, types.id
		case refused(err):
			d.card.FallBackToOne("%v", err)
		default:
			return err
		}
	}
	s := &d.steering
	root, err := d.createTable(0, rootLogSize)
	if err != nil {
		return err
	}
	if d.own.NoSteering {
		return d.letAllIn(root)
	}
	macs, err := root.group(0, rootGroupBit-1, maskMAC)
	if err != nil {
		return err
	}
	for i, mac := range append([][6]byte{d.card.MAC, broadcast}, s.groups...) {
		if err := root.set(uint32(i), macs, match{mac: mac}, kind, id); err != nil {
			return err
		}
	}
	if s.allMulticast {
		g, err := root.group(rootGroupBit, rootGroupBit, match{mac: groupBit})
		if err != nil {
			return err
		}
		if err := root.set(rootGroupBit, g, match{mac: groupBit}, kind, id); err != nil {
			return err
		}
	}
	if err := d.run(root.command(opSetFlowRoot, 0x40)); err != nil {
		return err
	}
	if err := d.vportLists(); err != nil {
		return err
	}
	return d.noLoopback()
}

// letAllIn sends every frame that the port receives to queue 0.
func (d *Device) letAllIn(root table) error {
	g, err := root.group(0, 0, match{})
	if err != nil {
		return err
	}
	if err := root.set(0, g, match{}, destTIR, d.queues[0].tir); err != nil {
		return err
	}
	if err := d.run(root.command(opSetFlowRoot, 0x40)); err != nil {
		return err
	}
	in := command(opModifyNICVport, 0, 0x200).set("field_select.promisc", 0x0C, 4, 4, 1).set("promisc_uc", 0x1F0, 31,
		31, 1).
		set("promisc_mc", 0x1F0, 30, 30, 1).set("promisc_all", 0x1F0, 29, 29, 1)
	if err := d.optional("all frames", d.run(in)); err != nil {
		return err
	}
	return d.noLoopback()
}

func (d *Device) directTIR(rqn uint32) (uint32, error) {
	in := command(opCreateTIR, 0, 0x110)
	in.at(0x20).
		set("disp_type", 0x04, 31, 28, 0).
		set("inline_rqn", 0x1C, 23, 0, rqn).
		set("transport_domain", 0x24, 23, 0, d.td)
	return d.create(in, opDestroyTIR, 23)
}

// Hash inputs (PRM, rx_hash_field_select).
const (
	hashIP    = 1<<0 | 1<<1 // source and destination
	hashPorts = 1<<2 | 1<<3
	toeplitz  = 2
)

func (d *Device) indirectTIR(rqt, v6, udp uint32) (uint32, error) {
	fields := uint32(hashIP)
	if udp == 1 {
		fields |= hashPorts
	}
	in := command(opCreateTIR, 0, 0x110)
	ctx := in.at(0x20).
		set("disp_type", 0x04, 31, 28, 1).
		set("indirect_table", 0x20, 23, 0, rqt).
		set("rx_hash_fn", 0x24, 31, 28, toeplitz).
		set("transport_domain", 0x24, 23, 0, d.td).
		set("l3_prot_type", 0x50, 31, 31, v6).
		set("l4_prot_type", 0x50, 30, 30, udp).
		set("selected_fields", 0x50, 29, 0, fields)
	for i := range 10 { // with this key both directions of a flow have the same hash
		ctx.set("rx_hash_toeplitz_key", 0x28+4*i, 31, 0, 0x6D5A6D5A)
	}
	return d.create(in, opDestroyTIR, 23)
}

// createRQT creates an indirection table of all queues.
func (d *Device) createRQT() (uint32, error) {
	size := min(uint32(128), 1<<d.caps.logMaxRQT)
	if uint32(len(d.queues)) > size {
		return 0, d.card.Errorf("%d queue pairs, an indirection table has up to %d entries", len(d.queues), size)
	}
	in := command(opCreateRQT, 0, 0x110+4*int(size))
	in.at(0x20).set("rqt_max_size", 0x14, 15, 0, size).set("rqt_actual_size", 0x18, 15, 0, size)
	for i := range int(size) {
		in.set("rq_num", 0x110+4*i, 23, 0, d.queues[i%len(d.queues)].rqn)
	}
	return d.create(in, opDestroyRQT, 23)
}

// startRSS creates the table that chooses a hash by frame type, over an indirection table.
func (d *Device) startRSS() (table, error) {
	rqt, err := d.createRQT()
	if err != nil {
		return table{}, err
	}
	t, err := d.createTable(1, typeLogSize)
	if err != nil {
		return t, err
	}
	index := uint32(0)
	for _, k := range []struct {
		mask   match
		values []match
	}{
		{match{etherType: 0xFFFF, protocol: 0xFF}, []match{{etherType: etherTypeV4, protocol: protoUDP}, {etherType: etherTypeV6, protocol: protoUDP}}},
		{match{etherType: 0xFFFF}, []match{{etherType: etherTypeV4}, {etherType: etherTypeV6}}},
		{match{}, []match{{}}},
	} {
		g, err := t.group(index, index+uint32(len(k.values))-1, k.mask)
		if err != nil {
			return t, err
		}
		for i, v := range k.values {
			tir := d.queues[0].tir
			if v.etherType != 0 {
				if tir, err = d.indirectTIR(rqt, uint32(i), min(v.protocol, 1)); err != nil {
					return t, err
				}
			}
			if err := t.set(index, g, v, destTIR, tir); err != nil {
				return t, err
			}
			index++
		}
	}
	return t, nil
}

// vportLists registers the wanted addresses with the switches in front of the vport (PRM, NIC_Vport_Context and L2
// table).
func (d *Device) vportLists() error {
	s := &d.steering
	unicast := [][6]byte{d.card.MAC}
	for _, l := range []struct {
		kind uint32
		macs [][6]byte
	}{{listUnicast, unicast}, {listMulticast, append([][6]byte{broadcast}, s.groups...)}} {
		in := command(opModifyNICVport, 0, 0x200+8*len(l.macs)).set("field_select.addresses_list", 0x0C, 2, 2, 1).
			set("allowed_list_type", 0x1F0, 26, 24, l.kind).
			set("allowed_list_size", 0x1F0, 11, 0, uint32(len(l.macs)))
		for i, mac := range l.macs {
			in.mac(0x200+8*i, mac)
		}
		if err := d.optional("the vport's address list", d.run(in)); err != nil {
			return err
		}
	}
	if s.allMulticast {
		in := command(opModifyNICVport, 0, 0x200).set("field_select.promisc", 0x0C, 4, 4, 1).set("promisc_mc", 0x1F0,
			30, 30, 1)
		if err := d.optional("all multicast", d.run(in)); err != nil {
			return err
		}
	}
	if d.caps.l2Table {
		for i, mac := range unicast {
			in := command(opSetL2Entry, 0, 0x40).set("table_index", 0x14, 23, 0, uint32(i)).mac(0x20, mac)
			if err := d.run(in); err != nil {
				return err
			}
			if i >= d.l2Entries {
				d.l2Entries++
				d.steps.Done(opDeleteL2Entry.String(), func() error {
					d.l2Entries--
					return d.run(command(opDeleteL2Entry, 0, 0x40).set("table_index", 0x14, 23, 0, uint32(i)))
				})
			}
		}
	}
	return nil
}

// optional records a command that firmware refused if the device works without it, such as a setting of a port that
// belongs to another function.
func (d *Device) optional(what string, err error) error {
	if err != nil && refused(err) {
		d.lacks = append(d.lacks, fmt.Sprintf("%s: %v", what, err))
		return nil
	}
	return err
}

// noLoopback makes the vport send frames for the function's own addresses to the wire. Otherwise a frame that claims
// our address as its source would loop forever through a responder that answers everything. Firmware enables loopback
// by default (Linux disables it, too). Old firmware cannot change it; there the TIRs drop frames from queues of their
// own transport domain, because their self_lb_block (Linux's name for the bits that accept such frames) is 0, and
// because they are created after all queues: a TIR does not know later ones.
func (d *Device) noLoopback() error {
	if !d.caps.localLoopback {
		return nil
	}
	return d.optional("local loopback", d.run(command(opModifyNICVport, 0, 0x200).
		set("field_select.disable_uc_local_lb", 0x0C, 11, 11, 1).
		set("field_select.disable_mc_local_lb", 0x0C, 10, 10, 1).
		set("disable_mc_local_lb", 0x100, 2, 2, 1).
		set("disable_uc_local_lb", 0x100, 1, 1, 1)))
}
