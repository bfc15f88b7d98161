package ixgbesim

// i2c is the SFP+ module's management bus, bit-banged by I2CCTL: bit 0 clock in, 1 clock out, 2 data in, 3 data out
// (§8.2.3.1.5). Both lines float high. The module answers at address A0h according to SFF-8472; it has no diagnostics
// at A2h.
type i2c struct {
	module          []byte // its memory at A0h; nil: the cage is empty
	clkLow, dataLow bool   // lines that the port pulls low
	low             bool   // the module pulls data low
	state, then     i2cState
	bits            int   // clocks of this byte seen; the ninth is the acknowledge
	shift           uint8 // the byte, received or being sent
	addr            uint8 // next byte of the module's memory
	nack            bool
	single          bool // it sends zeros after a transfer's first byte
}

type i2cState uint8

const (
	i2cIdle    i2cState = iota
	i2cDevice           // receiving the device address
	i2cAddress          // receiving the memory address
	i2cWrite            // receiving data, which a cable ignores
	i2cRead             // sending
)

const i2cModule = 0xa0

func (b *i2c) read() (v uint32) {
	if !b.clkLow {
		v |= 1<<0 | 1<<1
	}
	if !b.dataLow {
		v |= 1 << 3
	}
	if b.data() {
		v |= 1 << 2
	}
	return v
}

func (b *i2c) data() bool { return !b.dataLow && !b.low }

func (b *i2c) write(v uint32) {
	before, clk := b.data(), v&(1<<1) != 0
	b.dataLow = v&(1<<3) == 0
	if !b.clkLow && clk && before != b.data() {
		b.low = false
		b.bits, b.shift = 0, 0
		if b.state = i2cIdle; before { // data falls: start; rises: stop
			b.state = i2cDevice
		}
	}
	was := !b.clkLow
	b.clkLow = !clk
	switch {
	case b.state == i2cIdle:
	case !was && clk:
		b.rise()
	case was && !clk:
		b.fall()
	}
}

func (b *i2c) rise() {
	switch {
	case b.state == i2cRead:
		b.bits++
		b.nack = b.data()
	case b.bits < 8:
		b.bits++
		b.shift = b.shift << 1
		if b.data() {
			b.shift |= 1
		}
	}
}

func (b *i2c) fall() {
	switch {
	case b.state == i2cRead && b.bits == 9 && b.nack:
		b.state, b.low = i2cIdle, false
	case b.state == i2cRead && b.bits == 9:
		b.load()
		if b.single {
			b.shift, b.low = 0, true
		}
	case b.state == i2cRead:
		b.low = b.bits < 8 && b.shift<<b.bits&0x80 == 0
	case b.bits == 8:
		b.low, b.then = b.take()
		b.bits = 9
	case b.bits == 9:
		b.low, b.bits, b.state = false, 0, b.then
		if b.state == i2cRead {
			b.load()
		}
	}
}

// take handles a received byte. It returns whether to acknowledge it, and the next state.
func (b *i2c) take() (ack bool, then i2cState) {
	switch {
	case b.module == nil:
		return false, i2cIdle
	case b.state == i2cDevice && b.shift == i2cModule:
		return true, i2cAddress
	case b.state == i2cDevice && b.shift == i2cModule|1:
		return true, i2cRead
	case b.state == i2cAddress:
		b.addr = b.shift
		return true, i2cWrite
	case b.state == i2cWrite:
		return true, i2cWrite
	}
	return false, i2cIdle
}

func (b *i2c) load() {
	b.shift, b.bits = b.module[b.addr], 0
	b.low = b.shift&0x80 == 0
	b.addr++
}
