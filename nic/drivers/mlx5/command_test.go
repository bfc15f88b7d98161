package mlx5

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// scripted is a function that consists of an initialization segment and a script: it executes each command when its
// doorbell is written.
type scripted struct {
	rig.Script
	seg     [initSegment]byte
	window  []byte // the part of the BAR that does not trap
	master  bool
	removed bool

	sent   []message
	answer func(in message, outLen int) message // nil loses the command
	spoil  func(entry []byte, boxes [][]byte)   // called after the answer is in place
	seen   func(entry []byte, in, out [][]byte) // called with the data that the entry points to
}

func newFirmware(t testing.TB) *scripted { return newFirmwareOn(t, make([]byte, 1<<20)) }

func newFirmwareOn(t testing.TB, window []byte) *scripted {
	f := &scripted{Script: rig.NewScript(t), master: true, window: window}
	f.put(regCmdifRev, 5<<16|1220)
	f.put(regCmdqAddrLow, 5<<4|6) // 32 entries, 64 bytes apart
	f.answer = func(in message, outLen int) message { return make(message, outLen) }
	return f
}

func (f *scripted) put(r reg, v uint32) { binary.BigEndian.PutUint32(f.seg[r:], v) }
func (f *scripted) get(r reg) uint32    { return binary.BigEndian.Uint32(f.seg[r:]) }

func (f *scripted) ReadConfig(off int, p []byte) error {
	for i := range p {
		p[i] = 0xFF
	}
	if !f.removed {
		clear(p)
		if off == 0 {
			p[0], p[1] = 0xB3, 0x15
		} else if off == 4 && f.master {
			p[0] = 4
		}
	}
	return nil
}

func (f *scripted) ReadBAR(off uint64, p []byte) error {
	if f.removed {
		for i := range p {
			p[i] = 0xFF
		}
		return nil
	}
	if off+uint64(len(p)) <= initSegment {
		copy(p, f.seg[off:])
	}
	return nil
}

func (f *scripted) WriteBAR(off uint64, p []byte) error {
	if off >= initSegment {
		return nil
	}
	if reg(off) == regCmdqAddrLow {
		p = []byte{p[0], p[1], p[2]&0xF0 | f.seg[off+2]&0x0F, f.seg[off+3]} // sizes are read-only
	}
	copy(f.seg[off:], p)
	if reg(off) == regCmdDoorbell {
		v := f.get(regCmdDoorbell)
		for i := range 32 {
			if v>>i&1 != 0 {
				f.execute(f.Memory(uint64(f.get(regCmdqAddrHigh))<<32|uint64(f.get(regCmdqAddrLow)&^0xFFF)+uint64(i)*64,
					64))
			}
		}
	}
	return nil
}

// chain returns the mailboxes for n bytes from ptr on, and checks their content written by the driver.
func (f *scripted) chain(ptr uint64, n int, token byte) (boxes [][]byte) {
	for i := 0; n > 0; i++ {
		if ptr%mailboxPitch != 0 {
			f.Errorf("mailbox at %#x", ptr)
		}
		b := f.Memory(ptr, boxSize)
		if binary.BigEndian.Uint32(b[boxNumber:]) != uint32(i) || b[boxToken] != token || xor(b) != 0xFF ||
			xor(b[boxData:boxSignature]) != 0xFF {
			f.Errorf("mailbox %d: % x", i, b[boxData:])
		}
		boxes = append(boxes, b)
		ptr = binary.BigEndian.Uint64(b[boxNext:])
		n -= boxData
	}
	check.Equal(f, ptr, 0, "the last mailbox points to %#x")
	return boxes
}

func (f *scripted) execute(e []byte) {
	if e[entryType] != entryPCIe || e[entryStatus] != ownedByHW || xor(e) != 0xFF || e[entryToken] == 0 {
		f.Errorf("entry % x", e)
	}
	inLen, outLen := int(binary.BigEndian.Uint32(e[entryInLen:])), int(binary.BigEndian.Uint32(e[entryOutLen:]))
	inBoxes := f.chain(binary.BigEndian.Uint64(e[entryInPtr:]), inLen-entryInline, e[entryToken])
	outBoxes := f.chain(binary.BigEndian.Uint64(e[entryOutPtr:]), outLen-entryInline, e[entryToken])
	if f.seen != nil {
		f.seen(e, inBoxes, outBoxes)
	}
	in := append(message{}, e[entryIn:entryOut]...)
	for _, b := range inBoxes {
		in = append(in, b[:min(boxData, inLen-len(in))]...)
	}
	f.sent = append(f.sent, in)
	out := f.answer(in, outLen)
	if out == nil {
		return
	}
	copy(e[entryOut:entryOutPtr], out)
	for i, b := range outBoxes {
		copy(b[:boxData], out[min(len(out), entryInline+i*boxData):])
	}
	e[entryStatus] = 0
	if f.spoil != nil {
		f.spoil(e, outBoxes)
	}
}

func (f *scripted) device() *Device {
	d := &Device{barSize: 1 << 20}
	d.card.Name, d.card.Fn, d.card.Log, d.card.MTU, d.card.Options = "mlx5 script", f, slog.New(slog.DiscardHandler),
		1500, nic.Options{Queues: 1, RingSize: 64}
	d.bar = mmio.Trapped(1<<20, f, f.window, func(uint64, uint64) bool { return true })
	d.wc, d.uar.window = d.bar, d.bar
	d.fw, d.make = owned{d}, byCommand{d}
	must.OK(f, d.card.Allocate(1<<20))
	f.Cleanup(func() { d.card.Deallocate() })
	d.pages = &pagePool{arena: d.card.Arena, given: map[uint64]struct{}{}, limit: maxPages}
	d.commands = &commandQueue{name: "mlx5 script", regs: d.bar, alive: d.card.Alive, sick: d.sick,
		health: d.healthText}
	return d
}

func (f *scripted) started() *Device {
	d := f.device()
	must.OK(f, d.commands.start(d.card.Arena))
	return d
}

func startedFirmware(t testing.TB) (*scripted, *Device) {
	f := newFirmware(t)
	return f, f.started()
}

// working answers as a card with the capabilities that the driver needs.
func working(in message, size int) message {
	out := make(message, size)
	switch in.opcode() {
	case opQueryISSI:
		out.set("supported_issi", 0x6C, 31, 0, 2)
	case opQueryHCACap:
		c := out.at(0x10)
		c.set("eth_net_offloads", 0x40, 3, 3, 1).set("nic_flow_table", 0x34, 25, 25, 1).set("port_type", 0x34, 9, 8,
			1).set("", 0x4C, 31, 31, 1).
			set("", 0x4C, 20, 16, 9).set("log_max_cq_sz", 0x18, 23, 16, 22).set("log_max_wq_sz", 0x78, 4, 0, 15).
			set("", 0x70, 12, 8, 9).set("", 0x50, 15, 0, 1024)
		if in.opMod() == capFlowTable|capCur {
			c.set("ft_support", 0x40, 31, 31, 1)
		}
	case opAllocUAR:
		out.set("uar", 0x08, 23, 0, 0x10)
	case opQueryNICVport:
		out[0x107] = 2
	case opAccessReg:
		out.at(0x10)[4] = 0x27
	}
	return out
}

func TestCommandLengths(t *testing.T) {
	f, d := startedFirmware(t)
	for _, n := range []int{0x10, 0x14, 0x210, 0x211, 0x110, 0x410, 0x1010, maxMessage} {
		in := command(opQueryHCACap, 1, n)
		for i := 8; i < n; i++ {
			in[i] = byte(i * 7)
		}
		want := make(message, n)
		for i := 1; i < n; i++ {
			want[i] = byte(i * 3)
		}
		f.answer = func(message, int) message { return want }
		out, err := d.exec(in, n)
		if err != nil || !bytes.Equal(out, want) {
			t.Fatalf("%d bytes: %v, %d bytes back", n, err, len(out))
		}
		if got := f.sent[len(f.sent)-1]; !bytes.Equal(got, in) {
			t.Fatalf("%d bytes arrived as %d", n, len(got))
		}
	}
}

// Each status that firmware can return is named in the error, with command and syndrome.
func TestCommandStatus(t *testing.T) {
	f, d := startedFirmware(t)
	for s, name := range statusNames {
		f.answer = func(in message, n int) message {
			return make(message, n).set("status", 0, 31, 24, uint32(s)).set("syndrome", 4, 31, 0, 0xABCD1234)
		}
		err := d.run(command(opCreateSQ, 0, 0x110))
		check.Fails(t, name, err, nic.ErrHardware, "CREATE_SQ (0x904)", name, "0xabcd1234")
		check.Equal(t, refused(err), true, name+": a refusal %v")
	}
}

func TestCommandDelivery(t *testing.T) {
	for s, name := range deliveryNames {
		f, d := startedFirmware(t)
		f.spoil = func(e []byte, _ [][]byte) { e[entryStatus] = byte(s) << 1 }
		err := d.run(command(opInitHCA, 0, 0x10))
		check.Fails(t, name, err, nic.ErrHardware, name)
		check.Equal(t, refused(err), false, name+": a refusal %v")
	}
	for name, spoil := range map[string]func(e []byte, boxes [][]byte){
		"token":     func(e []byte, _ [][]byte) { e[entryToken]++ },
		"block":     func(_ []byte, b [][]byte) { b[3][boxNumber+3] ^= 1 },
		"box token": func(_ []byte, b [][]byte) { b[8-1][boxToken] ^= 0x80 },
	} {
		f, d := startedFirmware(t)
		f.spoil = spoil
		_, err := d.exec(command(opQueryHCACap, 0, 0x10), 0x1010)
		check.Fails(t, "wrong "+name, err, nic.ErrHardware)
		check.Equal(t, refused(err), false, name+": a refusal %v")
	}
}

// No command follows one without an answer, and its error names the command and the device's state.
func TestCommandTimeout(t *testing.T) {
	defer func(d time.Duration) { commandTimeout = d }(commandTimeout)
	commandTimeout = 20 * time.Millisecond
	f, d := startedFirmware(t)
	f.put(regHealthSynd, 0x0A<<16|0x1234)
	f.answer = func(message, int) message { return nil }
	err := d.run(command(opTeardownHCA, 0, 0x10))
	check.Fails(t, "a command without an answer", err, nic.ErrTimeout, "TEARDOWN_HCA", "ICM fetch PCI error", "0x1234",
		"reset required false")
	sent := len(f.sent)
	check.Equal(t, d.run(command(opInitHCA, 0, 0x10)), err, "the next command: %v")
	check.Equal(t, len(f.sent), sent, "%d commands were sent")
}

// A command to a device that was removed, was reset or requests a reset does not wait for the timeout.
func TestCommandGone(t *testing.T) {
	defer func(d time.Duration) { commandTimeout = d }(commandTimeout)
	commandTimeout = time.Hour
	for name, c := range map[string]struct {
		lose func(f *scripted)
		is   error
	}{
		"removed": {func(f *scripted) { f.removed = true }, nic.ErrGone},
		"reset":   {func(f *scripted) { f.master = false }, nic.ErrHardware},
		"sick":    {func(f *scripted) { f.put(regHealthSynd, 0x0A<<16); f.put(regHealthRFR, healthRFR) }, nic.ErrHardware},
	} {
		f, d := startedFirmware(t)
		f.answer = func(message, int) message { c.lose(f); return nil }
		check.Fails(t, name, d.run(command(opInitHCA, 0, 0x10)), c.is)
	}
}

func TestInitializationSegment(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *scripted)
		is    error
		says  string
	}{
		"one entry":  {func(f *scripted) { f.put(regCmdqAddrLow, 6) }, nic.ErrHardware, "2^0 entries"},
		"long queue": {func(f *scripted) { f.put(regCmdqAddrLow, 5<<4|8) }, nic.ErrHardware, "2^8 bytes"},
		"all ones":   {func(f *scripted) { f.removed = true }, nic.ErrGone, "all ones"},
	} {
		f := newFirmware(t)
		d := f.device()
		c.spoil(f)
		check.Fails(t, name, d.commands.start(d.card.Arena), c.is, c.says)
	}
}

// Firmware may request pages while it executes a command, and complete the command only afterwards. Page commands use a
// separate entry.
func TestPagesDuringCommand(t *testing.T) {
	f, d := startedFirmware(t)
	must.OK(t, d.createEQ())
	var waiting []byte
	f.seen = func(e []byte, _, _ [][]byte) {
		if opcode(binary.BigEndian.Uint16(e[entryIn:])) == opCreateCQ {
			waiting = e
		}
	}
	f.answer = func(in message, n int) message {
		switch in.opcode() {
		case opCreateCQ:
			e := d.events.mem[0:eqeSize]
			e[eqeType] = eventPageRequest
			binary.BigEndian.PutUint32(e[eqeData+4:], 600) // more than fits into one command
			e[eqeOwner] = 0
			return nil
		case opManagePages:
			if d.pages.held() == 600 {
				waiting[entryStatus] = 0
			}
		}
		return make(message, n)
	}
	must.OK(t, d.run(command(opCreateCQ, 0, 0x110)))
	if n := d.pages.held(); n != 600 || d.events.pageRequests.Load() != 1 {
		t.Errorf("firmware has %d pages, want 600", n)
	}
}

// If the host has no pages, the driver refuses them in the format that firmware expects; firmware may only return its
// own pages.
func TestPagesRefused(t *testing.T) {
	f, d := startedFirmware(t)
	d.pages.limit = 10
	check.Fails(t, "", d.givePages(3, 11), nil, "11 pages")
	if last := f.sent[len(f.sent)-1]; last.opcode() != opManagePages || last.opMod() != pagesCantGive ||
		last.get(0x08, 15, 0) != 3 {
		t.Errorf("sent % x", last)
	}
	must.OK(t, d.givePages(0, 10))
	given := f.sent[len(f.sent)-1]
	f.answer = func(in message, n int) message {
		out := make(message, n).set("output_num_entries", 0x08, 31, 0, 1)
		return out.set64(0x10, given.get64(0x10))
	}
	if n, err := d.reclaimPages(0, 5); n != 1 || err != nil || d.pages.held() != 9 {
		t.Errorf("%d pages, %v", n, err)
	}
	check.Fails(t, "a page given back twice", check.Err(d.reclaimPages(0, 5)), nic.ErrHardware, "did not have")
	f.answer = func(in message, n int) message { return make(message, n).set("output_num_entries", 0x08, 31, 0, 6) }
	check.Fails(t, "more pages than asked for", check.Err(d.reclaimPages(0, 5)), nic.ErrHardware)
	f.answer = func(in message, n int) message { return make(message, n).set("status", 0, 31, 24, 8) }
	if err := d.givePages(0, 1); !refused(err) || d.pages.held() != 9 {
		t.Errorf("refused by firmware: %v, %d held", err, d.pages.held())
	}
}

func TestMessageFields(t *testing.T) {
	m := make(message, 16).set("a", 4, 31, 28, 9).set("b", 4, 23, 0, 0xABCDEF).set("c", 8, 31, 0, 0xFFFFFFFF)
	check.Same(t, m, message{0, 0, 0, 0, 0x90, 0xAB, 0xCD, 0xEF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0}, "% x")
	check.Equal(t, m.get(4, 15, 8), 0xCD, "%#x")
	defer func() {
		if recover() == nil {
			t.Error("a value that does not fit is taken")
		}
	}()
	m.set("d", 4, 27, 24, 16)
}
