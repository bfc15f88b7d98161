package mlx4sim

// moduleInfo is the attribute by which the agent reads the module's memory (Linux, mlx4_get_module_info; FreeBSD has
// the same).
var moduleInfo = lay(64, `00.31:24 i2c_addr 00.23:16 page 00.15:0 address 04.15:0 size`)

// Errors of moduleInfo, in bits 15:8 of a datagram's status.
const (
	cableNoOperation  = 2 << 8
	cableNotConnected = 3 << 8
	cablePage         = 5 << 8
	cableAddress      = 6 << 8
	cableI2C          = 7 << 8

	mostModule = 48 // bytes of one request
	moduleSize = 256
	moduleI2C  = 0x50
)

// cable is a passive QSFP+ cable of 1 m, SFF-8636: the lower page, and upper page 0 from 128 on.
var cable = func() (e [moduleSize]byte) {
	e[0], e[1], e[2] = 0x0d, 0x03, 0x06       // QSFP+, revision, flat memory and no interrupt
	e[128], e[130], e[131] = 0x0d, 0x23, 1<<3 // no separable connector, 40GBASE-CR4
	e[146] = 1                                // m of copper
	text := func(from, to int, s string) {
		for i := from; i < to; i++ {
			e[i] = ' '
		}
		copy(e[from:to], s)
	}
	text(148, 164, "REBOUND")
	text(168, 184, "MODEL CR4 1M")
	text(184, 186, "1")
	text(196, 212, "SERIAL0123456789")
	for _, v := range e[128:191] {
		e[191] += v
	}
	return e
}()

// module reads up to 48 bytes of the module's memory.
func (m *Model) module(data []byte, set bool) uint16 {
	in := as(append([]byte(nil), data...), moduleInfo)
	at, size := in.U("address"), in.U("size")
	switch {
	case set:
		return cableNoOperation
	case !m.port.wire:
		return cableNotConnected
	case in.U("i2c_addr") != moduleI2C: // a QSFP+ cable answers at no other
		return cableI2C
	case in.U("page") > 15:
		return cablePage
	case size == 0 || size > mostModule || at+size > moduleSize:
		return cableAddress
	}
	copy(data[0x10:], cable[at:at+size])
	return 0
}
