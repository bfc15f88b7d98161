package mlx5

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

func (d *Device) exec(in message, outLen int) (message, error) { return d.fw.exec(in, outLen) }

// run sends a command whose output has no fields.
func (d *Device) run(in message) error {
	_, err := d.exec(in, 0x10)
	return err
}

// start brings the device from any state to polling.
func (d *Device) start() error {
	d.lacks = nil
	return d.card.Stages(slices.Concat(d.fw.begin(), []kit.Stage{
		kit.Learned,
		{Name: "create common objects", Do: func() error { return d.make.common() }},
		{Name: "set up the vport", Do: d.fw.vport},
		{Name: "create queues", Do: d.startQueues},
	}, d.fw.end())...)
}

// quiet resets the function and frees all memory.
func (d *Device) quiet() error {
	if err := d.card.Fn.SetBusMaster(false); err != nil {
		return err
	}
	if err := d.card.Fn.Reset(); err != nil {
		if pci.Gone(d.card.Fn) {
			return err
		}
		d.card.Log.Warn("function-level reset", "err", err)
	}
	d.steps.Forget()
	d.l2Entries = 0
	return d.card.Deallocate()
}

// enable enables the function and gives firmware its boot pages.
func (d *Device) enable() error {
	if d.commands.read(regInitializing)&embeddedCPU != 0 {
		return d.card.Errorf("this is the function of a BlueField's own processor, whose commands need embedded_cpu_function: not supported "+
			"(run on the host's side, or use the kernel's driver with xdp): %w", errors.ErrUnsupported)
	}
	if err := d.run(command(opEnableHCA, 0, 0x10)); err != nil {
		if refused(err) {
			return fmt.Errorf("%w (another driver may have the function)", err)
		}
		return err
	}
	d.steps.Done("DISABLE_HCA", func() error { return d.run(command(opDisableHCA, 0, 0x10)) })
	out, err := d.exec(command(opQueryISSI, 0, 0x10), 0x70)
	if err != nil {
		return err
	}
	if v := out.get(0x6C, 31, 0); v&(1<<1) == 0 {
		return d.card.Errorf("%w: firmware has no ISSI 1 (supported_issi %#x)", nic.ErrHardware, v)
	}
	if err := d.run(command(opSetISSI, 0, 0x10).set("current_issi", 0x08, 15, 0, 1)); err != nil {
		return err
	}
	d.steps.Done("reclaim pages", d.reclaimAll)
	return d.startupPages(pagesBoot)
}

// negotiate sets the current capabilities.
func (d *Device) negotiate() error {
	if !d.virtual {
		if _, err := d.access(regHostEndianness, accessWrite, make(message, 0x10)); err != nil { // 0: little-endian
			return err
		}
	}
	if _, err := d.queryCap(capGeneral | capMax); err != nil {
		return err
	}
	cur, err := d.queryCap(capGeneral | capCur)
	if err != nil {
		return err
	}
	in := command(opSetHCACap, capGeneral, 0x10+capSize)
	copy(in.at(0x10), cur[:0x100])
	in.at(0x10).
		set("cmdif_checksum", 0x40, 15, 14, 0).
		set("log_uar_page_sz", 0x90, 15, 0, 0) // 4 KiB
	return d.run(in)
}

func (d *Device) queryCap(which uint32) (message, error) {
	out, err := d.exec(command(opQueryHCACap, which, 0x10), 0x10+capSize)
	if err != nil {
		return nil, err
	}
	return out.at(0x10), nil
}

// initialize initializes the device and reads its capabilities.
func (d *Device) initialize() error {
	if err := d.startupPages(pagesInit); err != nil {
		return err
	}
	if err := d.run(command(opInitHCA, 0, 0x10)); err != nil {
		return err
	}
	d.steps.Done("TEARDOWN_HCA", func() error { return d.run(command(opTeardownHCA, 0, 0x10)) })
	return d.learn()
}

// learn reads the capabilities.
func (d *Device) learn() error {
	c, err := d.queryCap(capGeneral | capCur)
	if err != nil {
		return err
	}
	need := func(what string, have bool) {
		if err == nil && !have {
			err = d.card.Errorf("%w: capability %s is missing", nic.ErrHardware, what)
		}
	}
	need("eth_net_offloads", c.get(0x40, 3, 3) == 1)
	need("nic_flow_table", c.get(0x34, 25, 25) == 1)
	need("port_type Ethernet (the port is set to InfiniBand: mlxconfig LINK_TYPE)", c.get(0x34, 9, 8) == 1)
	if err != nil {
		return err
	}
	d.caps = capabilities{
		driverVersion: c.get(0x4C, 30, 30) == 1,
		endPad:        c.get(0x2C, 31, 31) == 1,
		vportCounters: c.get(0x30, 30, 30) == 1,
		l2Table:       c.get(0x34, 24, 24) == 1,
		localLoopback: c.get(0x7C, 30, 29) == 3,
		logMaxCQ:      c.get(0x18, 23, 16),
		logMaxWQ:      c.get(0x78, 4, 0),
		logMaxRQT:     c.get(0x70, 12, 8),
		maxWQE:        c.get(0x50, 15, 0),
		uar4K:         c.get(0x48, 31, 31) == 1,
		sqTimestamps:  c.get(0x88, 31, 30),
		rqTimestamps:  c.get(0x88, 29, 28),
		kHz:           cmp.Or(c.get(0x9C, 31, 0), 1000*c.get(0x98, 31, 0)),
		userContexts:  c.get(0x8C, 28, 24) != 0,
		matching:      matching{parser: c.get(0xA8, 31, 0)},
	}
	if c.get(0x4C, 31, 31) == 1 {
		log := c.get(0x4C, 20, 16)
		if log < 7 || uarBF+1<<log > uarPage {
			return d.card.Errorf("%w: BlueFlame registers of 2^%d bytes (log_bf_reg_size)", nic.ErrHardware, log)
		}
		d.caps.bfHalf = 1 << log / 2
	}
	e, err := d.queryCap(capEthernet | capCur)
	if err != nil {
		return err
	}
	d.caps.inlineMode = e.get(0x00, 13, 12)
	f, err := d.queryCap(capFlowTable | capCur)
	if err != nil {
		return err
	}
	need("flow_table_properties_nic_receive.ft_support", f.get(0x40, 31, 31) == 1)
	d.caps.ipVersion = f.get(0x60, 28, 28) == 1
	return err
}

// capabilities are the device capabilities that this driver uses (PRM, HCA Capabilities Layout).
type capabilities struct {
	driverVersion bool
	endPad        bool   // the device can pad what it writes to a cache line
	vportCounters bool   // QUERY_VPORT_COUNTER
	l2Table       bool   // the function manages the table that sends unicast frames to physical functions
	localLoopback bool   // loopback between queues of the vport can be switched
	uar4K         bool   //
	bfHalf        uint32 // bytes in half a BlueFlame register; 0 without BlueFlame
	logMaxCQ      uint32
	logMaxWQ      uint32
	logMaxRQT     uint32
	maxWQE        uint32 // bytes in the longest send WQE
	sqTimestamps  uint32 // timestamp formats that send and receive queues support
	rqTimestamps  uint32
	kHz           uint32 // of the free-running timer
	userContexts  bool   // log_max_uctx
	matching             // flex_parser_protocols, ft_field_support.outer_ip_version
	inlineMode    uint32 // which headers must be inline: inlineL2, inlineVport, inlineNone
}

func (d *Device) access(id uint32, mode uint32, data message) (message, error) {
	in := append(command(opAccessReg, mode, 0x10), data...).set("register_id", 0x08, 15, 0, id)
	out, err := d.exec(in, 0x10+len(data))
	if err != nil {
		return nil, fmt.Errorf("register %#04x: %w", id, err)
	}
	return out.at(0x10), nil
}

// The minimum inline mode: which headers must be inline in a send WQE (PRM, min_wqe_inline_mode).
const (
	inlineL2    = 0 // capability wqe_inline_mode
	inlineVport = 1
	inlineNone  = 2

	minInlineNone = 0 // min_wqe_inline_mode
	minInlineL2   = 1
	minInlineIP   = 2
	minInlineTCP  = 3
)

const layer2 = 14 + 4 // bytes of a MAC header with a VLAN tag

// headerBytes is the number of inline bytes that satisfies each minimum inline mode for every frame: MAC header and
// VLAN tag; a second tag and the IPv6 header; a TCP header.
var headerBytes = [4]uint32{minInlineNone: 0, minInlineL2: layer2, minInlineIP: 14 + 8 + 40,
	minInlineTCP: 14 + 8 + 40 + 20}

// startVport reads the vport's address and inline mode, and sets its MTU.
func (d *Device) startVport() error {
	out, err := d.exec(command(opQueryNICVport, 0, 0x10), 0x110)
	if err != nil {
		return err
	}
	switch own := [6]byte(out[0x106:]); {
	case d.card.Options.MAC != [6]byte{}:
		d.card.MAC = d.card.Options.MAC
	case own != [6]byte{} || !d.virtual:
		d.card.MAC = own
	default:
		if d.card.MAC == [6]byte{} { // a restart keeps a generated address
			rand.Read(d.card.MAC[:])
			d.card.MAC[0] = d.card.MAC[0]&^1 | 2 // unicast, locally administered
		}
		d.lacks = append(d.lacks,
			"the host gave this virtual function no address: this one was drawn, and another will be next time")
	}
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w", err)
	}
	if err := d.setInline(out); err != nil {
		return err
	}
	return d.setMTU()
}

// setInline reads the minimum inline mode from the answer to QUERY_NIC_VPORT_CONTEXT.
func (d *Device) setInline(vport message) error {
	switch d.caps.inlineMode {
	case inlineNone:
		d.minInline = minInlineNone
	case inlineVport:
		d.minInline = vport.get(0x10, 26, 24)
	default:
		d.minInline = minInlineL2
	}
	if d.minInline > minInlineTCP {
		return d.card.Errorf("%w: min_wqe_inline_mode is %d, expected 0 to 3", nic.ErrHardware, d.minInline)
	}
	return nil
}

// setMTU sets the MTU of port and vport: frames with two tags and FCS.
func (d *Device) setMTU() error {
	frame := uint32(d.card.MaxFrame() + 4)
	if !d.virtual {
		out, err := d.access(regPMTU, accessRead, make(message, 0x10).set("local_port", 0x00, 23, 16, 1))
		if err == nil {
			if most := out.get(0x04, 31, 16); most < frame {
				return d.card.Errorf("MTU %d needs frames of %d bytes with two tags and FCS, the port takes up to %d",
					d.card.MTU,
					frame, most)
			}
			_, err = d.access(regPMTU, accessWrite, make(message, 0x10).set("local_port", 0x00, 23, 16, 1).
				set("admin_mtu", 0x08, 31, 16, frame))
		}
		if err := d.optional("the port's MTU", err); err != nil {
			return err
		}
	}
	in := command(opModifyNICVport, 0, 0x200).set("field_select.mtu", 0x0C, 6, 6, 1).set("mtu", 0x124, 15, 0, frame)
	return d.optional("the vport's MTU stays as it is", d.run(in)) // Linux ignores the answer
}

// startPort enables the port. The link comes up later, if at all.
func (d *Device) startPort() error {
	if d.virtual {
		return nil
	}
	_, err := d.access(regPAOS, accessWrite, make(message, 0x10).
		set("local_port", 0x00, 23, 16, 1).set("admin_status", 0x00, 11, 8, 1).set("ase", 0x04, 31, 31, 1))
	return d.optional("the port stays as it is", err)
}

// teardown undoes every step in reverse order and reclaims firmware's pages last. It stops if the device does not
// respond, and leaves the rest to the reset.
func (d *Device) teardown() error {
	return d.steps.Undo(func() bool { return d.commands.dead.Load() != nil })
}

// releaseFunction stops the device's use of our memory before it is freed: it tears down the function, resets it and
// disables bus mastering.
func (d *Device) releaseFunction() error {
	var errs []error
	if d.commands != nil && d.card.Alive() == nil {
		if err := d.teardown(); !nic.Lost(err) { // a device that was removed has lost all its objects
			errs = append(errs, err)
		}
	}
	if err := d.card.Fn.SetBusMaster(false); err != nil && !pci.Gone(d.card.Fn) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, d.card.Deallocate())...)
}

// healthText describes the device's health buffer.
func (d *Device) healthText() string {
	v := d.commands.read(regHealthSynd)
	if v == ^uint32(0) {
		return "the health buffer reads all ones"
	}
	return fmt.Sprintf("health syndrome %v, extended %#04x, reset required %v", healthSyndrome(v>>16), v&0xFFFF,
		d.commands.read(regHealthRFR)&healthRFR != 0)
}
