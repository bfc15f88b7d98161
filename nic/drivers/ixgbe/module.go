package ixgbe

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Memory of an SFP or SFP+ module at address A0h, SFF-8472 table 4-1.
const (
	sffID     = 0  // 3: SFP or SFP+
	sff10G    = 3  // compliance with 10 Gb/s Ethernet, bits 7:4
	sff1G     = 6  // compliance with 1 Gb/s Ethernet, bits 3:0
	sffCable  = 8  // bit 2: passive cable, bit 3: active cable
	sffRate   = 12 // in units of 100 MBd
	sffVendor = 20 // 16 characters
	sffPart   = 40 // 16 characters, then 4 of the revision
	sffSum    = 63 // sum of the bytes before it
	sffRead   = 68 // bytes to read: everything before the serial number
)

var (
	names10G   = [8]string{4: "10GBASE-SR", 5: "10GBASE-LR", 6: "10GBASE-LRM", 7: "10GBASE-ER"}
	names1G    = [8]string{0: "1000BASE-SX", 1: "1000BASE-LX", 2: "1000BASE-CX", 3: "1000BASE-T"}
	namesCable = [8]string{2: "passive copper cable", 3: "active cable"}
)

// module is the memory of the SFP+ module, nil if there is none.
type module []byte

// kinds returns the names of the types that the module reports.
func (m module) kinds() (all []string) {
	for _, of := range []struct {
		at    int
		names *[8]string
	}{{sffCable, &namesCable}, {sff10G, &names10G}, {sff1G, &names1G}} {
		for bit, name := range of.names {
			if name != "" && m[of.at]>>bit&1 != 0 {
				all = append(all, name)
			}
		}
	}
	if all == nil {
		all = []string{"unknown kind"}
	}
	return all
}

// checksumRight reports whether the checksum is right. Some modules return zeros after a transfer's first byte (Linux,
// sfp_id_needs_byte_io). The identifier of a module is not 0, so that zeros alone are wrong, too.
func (m module) checksumRight() bool {
	var sum byte
	for _, v := range m[:sffSum] {
		sum += v
	}
	return m[sffID] != 0 && sum == m[sffSum]
}

// fast reports whether a module works at 10 Gb/s.
func (m module) fast() bool { return m[sff10G]>>4 != 0 || m[sffCable]&0xC != 0 || m[sffRate] >= 99 }

func (m module) String() string {
	if m == nil {
		return "none answers"
	}
	name := string(m[sffVendor:sffVendor+16]) + " " + string(m[sffPart:sffPart+20])
	printable := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.TrimRight(name, "\x00"))
	return strings.Join(m.kinds(), ", ") + ", " + strings.Join(strings.Fields(printable), " ")
}

// core returns the module type that selects the CORECTL values in the EEPROM: passive cables or other modules, on the
// first or second port (Linux, enum ixgbe_sfp_type and ixgbe_get_sfp_init_sequence_offsets).
func (m module) core(port uint32) uint16 {
	if m[sffCable]>>2&1 != 0 {
		return uint16(3 + port)
	}
	return uint16(5 + port)
}

// findModule reads the SFP+ module. A module is ready 300 ms after it has power (SFF-8431), and several tries take as
// long. It logs what is wrong with a module, if that is news.
func (d *Device) findModule(tries int) error {
	own := d.phySync()
	before := d.module
	d.module = nil
	var b module
	var failed error
	for try := range tries {
		if try > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if err := d.acquireSync(own); err != nil {
			return err
		}
		began := time.Now()
		d.card.Quietly(func() { b, failed = d.readModule() })
		e := cmdtrace.Entry{Kind: cmdtrace.Command, Name: moduleEntry, Out: cmdtrace.Bytes(b), Took: time.Since(began)}
		if failed != nil {
			e.Err = failed.Error()
		}
		d.card.Trace.Add(e)
		d.releaseSync(own)
		if failed == nil || d.gone() {
			break
		}
	}
	switch {
	case failed != nil && tries == 1 && before == nil:
		return nil
	case failed != nil:
		d.card.Log.Warn("no module answers: the SFP+ cage is empty, or the module has no EEPROM", "err", failed)
		return nil
	case bytes.Equal(before, b):
	case b[sffID] != 3:
		d.card.Log.Warn("the module does not identify itself as an SFP or SFP+", "identifier", b[sffID])
	}
	d.module = b
	if !bytes.Equal(before, b) && !d.module.fast() && d.medium == medium(lmsSFI) {
		d.card.Log.Warn(`the module is not for 10 Gb/s (debug.link_mode = "0" selects 1 Gb/s)`, "module",
			d.module.String())
	}
	return nil
}

// moduleEntry names the module's bytes in the trace. proof/replay uses it.
const moduleEntry = "bytes 0 to 67 of the SFP+ module"

// startModule writes the EEPROM's values for this type of module to the analog part, as Linux and DPDK do; Snabb and
// ixy do not, and still get a link. The caller holds the MAC's semaphore.
func (d *Device) startModule() error {
	if d.module == nil {
		return nil
	}
	const unused, most = 0xFFFF, 512
	list, err := d.eeprom(eepromSFPPointer)
	if err != nil || list == 0 || list == unused {
		return err
	}
	want := d.module.core(d.read(regSTATUS) >> statusLANLSB & 1)
	var at uint16
	for pair := list + 1; at == 0; pair += 2 { // kind and pointer, until an unused kind
		kind, err := d.eeprom(pair)
		if err != nil {
			return err
		}
		if kind == unused || pair > list+most {
			d.card.Log.Info("the EEPROM has no settings for this kind of module", "module", d.module.String())
			return nil
		}
		if kind == want {
			if at, err = d.eeprom(pair + 1); err != nil || at == 0 || at == unused {
				return err
			}
		}
	}
	for word := at + 1; word < at+most; word++ { // the first is the length
		v, err := d.eeprom(word)
		if err != nil || v == unused {
			return err
		}
		d.write(regCORECTL, uint32(v))
		d.read(regSTATUS) // the write has arrived
	}
	return nil
}

// i2c drives the module's management bus by I2CCTL (§8.2.3.1.5): both lines are pulled up, and driven low only.
type i2c struct {
	d           *Device
	rest        uint32 // I2CCTL's other bits
	clock, data bool   // released, and so high
}

// i2cHalf is half a period of the standard mode's clock, 100 kHz. The model needs no time: tests set it to 0.
var i2cHalf = 5 * time.Microsecond

var errNoAnswer = errors.New("no acknowledgement on the module's bus")

func (b *i2c) put() uint32 {
	v := b.rest
	if b.clock {
		v |= i2cClockOut
	}
	if b.data {
		v |= i2cDataOut
	}
	b.d.bar.Write32(uint64(regI2CCTL), v)
	in := b.d.bar.Read32(uint64(regI2CCTL)) // the write has arrived
	began := time.Now()
	// 200 reads of the clock take about this long; in tests the clock may not advance
	for n := 0; n < 200 && time.Since(began) < i2cHalf; n++ {
	}
	return in
}

func (b *i2c) setClock(high bool) {
	b.clock = high
	for n := 0; b.put()&i2cClockIn == 0 && high && n < 100; n++ { // clock stretching: the module holds the clock low
	}
}

func (b *i2c) setData(high bool) {
	if b.data != high {
		b.data = high
		b.put()
	}
}

// start makes data fall while the clock is high; between bytes, too.
func (b *i2c) start() {
	b.setData(true)
	b.setClock(true)
	b.setData(false)
	b.setClock(false)
}

func (b *i2c) stop() {
	b.setData(false)
	b.setClock(true)
	b.setData(true)
}

// bit puts a bit on the line and returns the line's level.
func (b *i2c) bit(v bool) bool {
	b.setData(v)
	b.setClock(true)
	in := b.d.bar.Read32(uint64(regI2CCTL))&i2cDataIn != 0
	b.setClock(false)
	return in
}

func (b *i2c) send(v byte) error {
	for i := 7; i >= 0; i-- {
		b.bit(v>>i&1 != 0)
	}
	if b.bit(true) {
		return errNoAnswer
	}
	return nil
}

// read fills p with the module's memory from at on.
func (b *i2c) read(at byte, p []byte) error {
	const module = 0xA0
	defer b.stop()
	b.start()
	for _, v := range []byte{module, at} {
		if err := b.send(v); err != nil {
			return err
		}
	}
	b.start()
	if err := b.send(module | 1); err != nil {
		return err
	}
	for i := range p {
		for range 8 {
			p[i] <<= 1
			if b.bit(true) {
				p[i] |= 1
			}
		}
		b.bit(i == len(p)-1) // no acknowledgement: the last byte
	}
	return nil
}

// readModule reads the module's memory in one transfer, and byte by byte if the checksum is then wrong. It first sends
// nine clocks, which end a transfer that was interrupted earlier.
func (d *Device) readModule() (module, error) {
	b := i2c{d: d, rest: d.bar.Read32(uint64(regI2CCTL)) &^ (i2cClockOut | i2cDataOut | i2cClockIn | i2cDataIn),
		clock: true, data: true}
	b.setClock(false)
	for range 9 {
		b.bit(true)
	}
	b.start()
	b.stop()
	m := make(module, sffRead)
	if err := b.read(0, m); err != nil {
		return nil, err
	}
	if m.checksumRight() {
		return m, nil
	}
	for at := range m {
		if err := b.read(byte(at), m[at:at+1]); err != nil {
			return nil, err
		}
	}
	return m, nil
}
