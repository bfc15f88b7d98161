package mlx4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

// start brings the device from any state to polling, in the order of Linux's mlx4_load_one and mlx4_en_start_port. It
// allocates all memory again, because firmware that died does not return what it had.
func (d *Device) start() error {
	if err := d.card.Do("reset the function", d.quiet); err != nil {
		return err
	}
	if err := d.card.Allocate(16 << 20); err != nil {
		return err
	}
	d.commands = &hcr{name: d.card.Name, trace: &d.card.Trace, regs: d.bar, alive: d.card.Alive,
		died: func() bool { return d.checkCatas() != nil }, state: d.catasText}
	d.lacks, d.fw = nil, firmware{}
	if err := d.card.Do("take the ownership register", d.claim); err != nil {
		return err
	}
	if err := d.card.Do("reset the card", d.resetCard); err != nil {
		return err
	}
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	return d.card.Stages(
		kit.Stage{Name: "start the command register", Do: func() error { return d.commands.start(d.card.Arena) }},
		kit.Stage{Name: "run the firmware", Do: d.runFirmware}, kit.Stage{Name: "read capabilities", Do: d.learn},
		kit.Stage{Name: "read the port", Do: d.learnPort}, d.card.Evidence(d.evidence), kit.Learned,
		kit.Stage{Name: "map doorbells", Do: d.mapDoorbells}, kit.Stage{Name: "map context memory", Do: d.contexts},
		kit.Stage{Name: "initialize the card", Do: d.initialize}, d.card.Evidence(d.modules),
		kit.Stage{Name: "make a memory key", Do: d.memoryKey},
		kit.Stage{Name: "create the event queue", Do: d.createEQ}, kit.Stage{Name: "create queues", Do: d.startQueues},
		kit.Stage{Name: "start the port", Do: d.startPort}, kit.Stage{Name: "steer frames", Do: d.startSteering},
		kit.Stage{Name: "start the subnet agent", Do: d.startSubnet})
}

// quiet stops the function's DMA, resets it and frees all memory. The first start has no memory to free: without bus
// mastering the card's own reset, which follows, is enough, as in Linux.
func (d *Device) quiet() error {
	if err := d.card.Fn.SetBusMaster(false); err != nil || d.commands == nil {
		return err
	}
	if err := d.card.Fn.Reset(); err != nil {
		if pci.Gone(d.card.Fn) {
			return err
		}
		d.card.Log.Info("no function-level reset: the card's own follows", "err", err)
	} else {
		time.Sleep(resetSettle)
	}
	d.steps.Forget()
	return d.card.Deallocate()
}

// claim takes the ownership register, which marks the card as used by a driver. The kernel gives a function to one
// process at a time, so a register that is taken was left by a killed driver or by an earlier start of ours: it is
// released first.
func (d *Device) claim() error {
	v, err := d.readOwner()
	left := v
	for end := kit.NewDeadline(ownerTimeout, 3); err == nil && v != 0; v, err = d.readOwner() {
		if end.Over() {
			return d.card.Errorf("%w: the ownership register (%#x) reads %#x although it was given back, expected 0: another function of the card has "+
				"a driver (release it, or power the host off and on)", nic.ErrBusy, uint64(regOwner), v)
		}
		d.releaseOwnership()
	}
	if err != nil {
		return err
	}
	if left != 0 && !d.owned {
		d.card.Log.Warn("took the card over from a driver that did not give it back", "ownership register", left)
	}
	d.owned = true
	return nil
}

// readOwner reads the ownership register, which takes ownership if it reads 0. During a reset the card does not answer.
func (d *Device) readOwner() (uint32, error) {
	for end := kit.NewDeadline(resetTimeout, leastLooks); ; time.Sleep(resetLook) {
		late := end.Over()
		v := d.commands.read(regOwner)
		switch {
		case v != ^uint32(0):
			return v, nil
		case pci.Gone(d.card.Fn):
			return v, d.card.Gone("ownership register")
		case late:
			return v, d.card.Errorf(
				"%w: the card does not answer: the ownership register (%#x) reads all ones for %v after a reset",
				nic.ErrTimeout,
				uint64(regOwner), resetSettle+resetTimeout)
		}
	}
}

// releaseOwnership releases the ownership register. Linux then waits for a second before it does anything else
// (mlx4_free_ownership).
func (d *Device) releaseOwnership() {
	d.commands.write(regOwner, 0)
	time.Sleep(ownerPause)
	d.owned = false
}

// Parts of configuration space that a reset of the whole card clears, and the driver restores: cache line and latency,
// BARs, expansion ROM, interrupt line; and in the PCI Express capability the device and link control registers.
var headerDwords = []int{0x0C, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24, 0x30, 0x3C}

const (
	cfgCommand        = 0x04
	expressDevControl = 0x08
	expressLnkControl = 0x10
)

// payload returns Max_Payload_Size of Device Control in bytes. A reset leaves payloadReset (PCIe 5.0 §7.5.3.4).
func payload(control []byte) int { return 128 << (control[0] >> 5) }

const payloadReset = 128

// resetCard resets the whole card by its register, as Linux does on every start, and restores configuration space. Over
// VFIO the BARs that a driver writes are not the real ones: the kernel restores those itself when the command register
// is written with memory space on (vfio_bar_restore). VFIO does not pass all bits of Device Control either.
func (d *Device) resetCard() error {
	fn := d.card.Fn
	type word struct {
		off int
		b   []byte
	}
	var saved []word
	save := func(off, n int) error {
		w := word{off, make([]byte, n)}
		saved = append(saved, w)
		return fn.ReadConfig(off, w.b)
	}
	for _, off := range headerDwords {
		if err := save(off, 4); err != nil {
			return err
		}
	}
	express, err := pci.Capability(fn, pci.CapExpress)
	if err != nil {
		return err
	}
	if express != 0 {
		for _, off := range []int{expressDevControl, expressLnkControl} {
			if err := save(express+off, 2); err != nil {
				return err
			}
		}
	}
	if err := save(cfgCommand, 2); err != nil { // restored last
		return err
	}
	// A program that writes the flash holds the semaphore. The reset releases it.
	for end := kit.NewDeadline(semTimeout, leastLooks); ; time.Sleep(commandLook) {
		late := end.Over()
		v := d.commands.read(regResetSem)
		if v == 0 {
			break
		}
		if pci.Gone(fn) {
			return d.card.Gone("configuration space")
		}
		if late {
			return d.card.Errorf("%w: the flash semaphore (%#x) reads %#x for %v, expected 0: is the card's firmware being written?", nic.ErrTimeout,
				uint64(regResetSem), v, semTimeout)
		}
	}
	d.commands.write(regReset, 1)
	time.Sleep(resetSettle)
	for end := kit.NewDeadline(resetTimeout, 10); pci.Gone(fn); time.Sleep(resetLook) {
		if end.Over() {
			return d.card.Gone("vendor ID, after a reset of the card,")
		}
	}
	for _, w := range saved {
		if err := fn.WriteConfig(w.off, w.b); err != nil {
			return d.card.Errorf("after a reset of the card: configuration space %#x: %w", w.off, err)
		}
		if express == 0 || w.off != express+expressDevControl {
			continue
		}
		switch err := pci.WriteReal(fn, w.off, w.b); {
		case err == nil:
		case payload(w.b) > payloadReset:
			return d.card.Errorf("the reset of the card reduced its payload size from %d to %d bytes, and Device Control cannot be restored: %w: larger answers of the "+
				"port above are errors to the card (as an ordinary user: rebound-responder bind -group GROUP %s; with kernel lockdown leave the card to mlx4_en)",
				payload(w.b), payloadReset, err, fn.Name())
		default:
			d.card.Log.Warn("the size of read requests is not as before the card's reset", "err", err)
		}
	}
	return nil
}

// firmware is the result of QUERY_FW.
type firmware struct {
	major, minor, subminor uint16
	pages                  uint16

	catasBAR    int
	catasOffset uint64
	catasWords  uint32
}

func (f firmware) String() string { return fmt.Sprintf("%d.%d.%04d", f.major, f.minor, f.subminor) }

// runFirmware reads the firmware's version, and gives it the memory that it runs in.
func (d *Device) runFirmware() error {
	m, err := d.commands.query(opQueryFW, 0)
	if err != nil {
		var e *CommandError
		if errors.As(err, &e) && e.Status == statusMultiFunction {
			return fmt.Errorf("%w (this is not the card's primary function)", err)
		}
		return err
	}
	d.fw = firmware{
		major: m.u16(0x02), subminor: m.u16(0x04), minor: m.u16(0x06), pages: m.u16(0x00),
		catasOffset: m.u64(0x30), catasWords: m.u32(0x38), catasBAR: int(m.u8(0x3C)>>6) * 2,
	}
	if rev := m.u16(0x0A); rev != cmdifRev {
		return d.card.Errorf("%w: firmware %v has command interface revision %d, this driver knows %d", nic.ErrHardware,
			d.fw, rev, cmdifRev)
	}
	blocks, err := d.memory(uint64(d.fw.pages))
	if err != nil {
		return err
	}
	if err := d.mapMemory(opMapFA, blocks, 0); err != nil {
		return err
	}
	d.steps.Done(opUnmapFA.String(), func() error { return d.commands.run(command{op: opUnmapFA}) })
	return d.commands.run(command{op: opRunFW})
}

// optional notes a refusal by firmware if the device works without the feature.
func (d *Device) optional(what string, err error) error {
	if err != nil && refused(err) {
		d.lacks = append(d.lacks, fmt.Sprintf("%s: %v", what, err))
		return nil
	}
	return err
}

// capabilities are the device capabilities that this driver uses (QUERY_DEV_CAP; Linux, fw.c).
type capabilities struct {
	reservedQPs, maxQPs   uint32
	reservedSRQs          uint32
	reservedCQs, maxCQs   uint32
	reservedEQs, maxEQs   uint32
	reservedMTTs          uint32
	reservedMPTs, maxMPTs uint32
	maxCQSize, maxQPSize  uint32 // entries of the longest queue
	reservedPDs           uint32
	reservedUARs, uars    uint32 // pages
	ports                 uint32
	maxWQE                uint32 // bytes in the longest send WQE
	bfHalf                uint32 // bytes in half a BlueFlame register; 0 without BlueFlame
	maxICM                uint64
	maxRSS                uint32 // queues that frames can be spread over; 0 for none
	toeplitz, udpRSS      bool
	flowSteering          bool  // device-managed
	steeringQPs           uint8 // QPs per steering rule
	swCQInit              bool
	portChanges           bool // events report changes by the subnet manager

	rdmarcSize, qpcSize, auxcSize, altcSize, eqcSize, cqcSize, srqSize, cmptSize, mttSize, dmptSize uint16

	// Of the port (QUERY_PORT).
	mtu       uint32 // of Ethernet
	ibMTU     int    // of InfiniBand: bytes of payload
	ibWidths  uint8
	mac       [6]byte
	logMACs   uint8
	portTypes uint8
}

// learn reads the device's capabilities.
func (d *Device) learn() error {
	var m mailbox
	for range 3 { // some cards do not report their context memory on the first query
		var err error
		if m, err = d.commands.query(opQueryDevCap, 0); err != nil {
			return err
		}
		if m.u64(0xA0) != 0 {
			break
		}
	}
	log := func(off int, mask uint8) uint32 { return 1 << (m.u8(off) & mask & 31) }
	flags, flags2 := m.u64(0x40), m.u32(0x70)
	c := &d.caps
	*c = capabilities{
		maxQPSize: log(0x11, 31), reservedQPs: log(0x12, 15), maxQPs: log(0x13, 31),
		reservedSRQs: 1 << (m.u8(0x14) >> 4),
		maxCQSize:    log(0x19, 31), reservedCQs: log(0x1A, 15), maxCQs: log(0x1B, 31),
		maxMPTs: log(0x1D, 31), reservedMPTs: log(0x22, 15),
		reservedEQs: log(0x1E, 15), maxEQs: log(0x1F, 15),
		reservedMTTs: 1 << (m.u8(0x20) >> 4),
		ports:        uint32(m.u8(0x37) & 15),
		reservedUARs: uint32(m.u8(0x48) >> 4), uars: uint32(uint64(minBAR2) << (m.u8(0x49) & 15) / uarPage),
		maxWQE:      uint32(m.u16(0x52)),
		reservedPDs: uint32(m.u8(0x64) >> 4),
		maxICM:      m.u64(0xA0),
		toeplitz:    m.u8(0x2E)&0x10 != 0, udpRSS: flags&capUDPRSS != 0,
		flowSteering: m.u8(0x76)&0x80 != 0, steeringQPs: m.u8(0x77),
		swCQInit: flags2&cap2SWCQInit != 0, portChanges: flags&capPortChanges != 0,
		rdmarcSize: m.u16(0x80), qpcSize: m.u16(0x82), auxcSize: m.u16(0x84), altcSize: m.u16(0x86),
		eqcSize: m.u16(0x88),
		cqcSize: m.u16(0x8A), srqSize: m.u16(0x8C), cmptSize: m.u16(0x8E), mttSize: m.u16(0x90), dmptSize: m.u16(0x92),
	}
	if v := m.u8(0x2E) & 15; v != 0 {
		c.maxRSS = 1 << v
	}
	if m.u8(0x4C)&0x80 != 0 {
		v := m.u8(0x4D) & 31
		if v < 7 || v > 12 {
			return d.card.Errorf("%w: QUERY_DEV_CAP says that BlueFlame registers have 2^%d bytes, expected 2^7 to 2^12", nic.ErrHardware, v)
		}
		c.bfHalf = 1 << v / 2
	}
	if d.port > c.ports {
		return d.card.Errorf("port %d is asked for, the card has %d", d.port, c.ports)
	}
	if n := uint32(d.card.Options.Queues); c.maxRSS > 0 && n > c.maxRSS {
		return d.card.Errorf("%w: %d queue pairs are asked for, the card spreads frames over %d", nic.ErrHardware, n,
			c.maxRSS)
	}
	ring := uint32(d.card.Options.RingSize)
	if ring*maxBlocks > c.maxQPSize || ring*maxBlocks > c.maxCQSize {
		return d.card.Errorf("a ring of %d takes queues of %d entries, the device has QPs of %d and CQs of %d at most",
			ring, ring*maxBlocks,
			c.maxQPSize, c.maxCQSize)
	}
	return nil
}

// The smallest BAR 2 has doorbells for all queues.
var _ [minBAR2/uarPage - firstUAR - maxQueues - specialUARs]struct{}

// mapDoorbells maps BAR 2: doorbell pages uncached, the BlueFlame pages after them write-combining.
func (d *Device) mapDoorbells() (err error) {
	c := &d.caps
	if d.eqUAR() >= c.uars {
		return d.card.Errorf("%w: the device has %d pages of doorbells (UAR), expected %d or more (firmware's log2_uar_bar_megabytes)", nic.ErrHardware,
			c.uars, d.eqUAR()+1)
	}
	uars := uint64(c.uars) * uarPage
	if d.uars != nil { // a restart
		return nil
	}
	if c.bfHalf != 0 {
		if err := pci.SplitWC(d.card.Fn, 2, uars); err != nil {
			d.noBlueFlame(err.Error())
			c.bfHalf = 0
		} else if d.flames, err = d.card.Fn.BARWC(2); err != nil {
			return err
		} else if d.flames.Size() < 2*uars {
			d.flames = nil
		}
	}
	d.uars, err = d.card.Fn.BAR(2)
	if err == nil && d.uars.Size() < uars {
		err = d.card.Errorf("BAR 2 is %#x bytes, expected %#x or more", d.uars.Size(), uars)
	}
	return err
}

// eqUAR returns the page of our event queue's doorbell.
func (d *Device) eqUAR() uint32 { return max(4*d.caps.reservedUARs, d.caps.reservedEQs) / 4 }

// Which unicast rules may be made (Linux, mlx4.h: MLX4_FS_UDP_UC_EN, MLX4_FS_TCP_UC_EN).
const (
	steerUDP = 1 << 1
	steerTCP = 1 << 2
)

// initialize starts the device's own work.
func (d *Device) initialize() error {
	m := &d.icm
	t := &m.tables
	in := make(mailbox, 0x200)
	log := func(r resource) uint8 { return uint8(log2(uint32(t[r].entries))) }
	in.set8(0x00, 2)         // version
	in.set8(0x0E, 2<<5|1<<4) // cache lines of 64 bytes
	flags := uint32(1)       // the port of an address vector is checked
	in.set64(0x30, t[resQP].base)
	in.set8(0x37, log(resQP))
	in.set64(0x48, t[resSRQ].base)
	in.set8(0x4F, log(resSRQ))
	in.set64(0x50, t[resCQ].base)
	in.set8(0x57, log(resCQ))
	in.set64(0x60, t[resALTC].base)
	in.set64(0x70, t[resAUXC].base)
	in.set64(0x80, t[resEQ].base)
	in.set8(0x87, log(resEQ))
	in.set64(0x90, t[resRDMARC].base)
	in.set8(0x97, logRDMARC)
	if m.managed {
		flags |= 1 << 6
		in.set64(0x1D0, t[resMCG].base)
		in.set8(0x1E3, uint8(m.groupLog))
		in.set8(0x1EB, log(resMCG))
		in.set8(0x1F1, steerUDP|steerTCP)
		in.set16(0x1F2, 8)
		in.set8(0x1F5, steerUDP|steerTCP)
		in.set16(0x1F6, 8)
	} else {
		in.set64(0xC0, t[resMCG].base)
		in.set8(0xD3, uint8(m.groupLog))
		in.set8(0xD7, log(resMCG)-1)
		in.set8(0xDB, log(resMCG))
	}
	in.set32(0x14, flags)
	in.set64(0xF0, t[resDMPT].base)
	in.set8(0xFB, log(resDMPT))
	in.set64(0x100, t[resMTT].base)
	in.set64(0x108, t[resCMPT].base)
	in.set8(0x12A, uint8(log2(d.caps.uars)))
	in.set8(0x12B, 0) // UAR pages of 4 KiB
	if err := d.commands.run(command{op: opInitHCA, in: in}); err != nil {
		return err
	}
	d.steps.Done(opCloseHCA.String(), func() error { return d.commands.run(command{op: opCloseHCA}) })
	a, err := d.commands.query(opQueryAdapter, 0)
	if err != nil {
		return err
	}
	d.board = boardID(a[0x20:][0xD0:][:16])
	// QP0 and QP1 of both ports. Ethernet uses neither, but every known driver configures them, so it is unknown
	// whether a card works without.
	if err := d.commands.run(command{op: opSpecialQP, modifier: m.specialQP}); err != nil {
		return err
	}
	d.steps.Done(opSpecialQP.String(), func() error { return d.commands.run(command{op: opSpecialQP}) })
	return nil
}

// boardID decodes the vendor's name of the board: a string whose words are byte-swapped by firmware.
func boardID(b []byte) string {
	var id []byte
	for i := 0; i < len(b); i += 4 {
		id = binary.BigEndian.AppendUint32(id, binary.LittleEndian.Uint32(b[i:]))
	}
	s := strings.TrimRight(string(id), "\x00 ")
	for _, c := range s {
		if c < ' ' || c > '~' {
			return "unknown"
		}
	}
	if s == "" {
		return "unknown"
	}
	return s
}

// teardown undoes every step in reverse, firmware's memory last. A device that does not answer is left to its reset.
func (d *Device) teardown() error {
	return d.steps.Undo(func() bool { return d.commands.dead.Load() != nil })
}

// release stops all activity of the device before memory is freed: firmware is informed, ownership is released, bus
// mastering is off.
func (d *Device) release() error {
	var errs []error
	d.subnet.stop(true)
	// otherwise the device does not respond
	if d.commands != nil && d.commands.dead.Load() == nil && d.card.Alive() == nil && d.checkCatas() == nil {
		if err := d.teardown(); !nic.Lost(err) { // a device that is gone took its objects with it
			errs = append(errs, err)
		}
	}
	if err := d.card.Fn.SetBusMaster(false); err != nil && !pci.Gone(d.card.Fn) {
		errs = append(errs, err)
	}
	if d.commands != nil && d.commands.dead.Load() != nil { // firmware must not begin the command later
		if err := d.card.Fn.Reset(); err != nil && !pci.Gone(d.card.Fn) {
			d.card.Log.Info("no function-level reset after a command without an answer", "err", err)
		}
	}
	if d.owned && !pci.Gone(d.card.Fn) {
		d.releaseOwnership()
	}
	return errors.Join(append(errs, d.card.Deallocate())...)
}
