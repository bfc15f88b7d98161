package mlx5

// capTypes is the number of capability types that are queried (Linux, enum mlx5_cap_type).
const capTypes = 0x20

// evidence queries what a probe file contains beyond what Open needs: the adapter, every type of capabilities, the
// vport, and the port with its module. The trace records the answers. Firmware refuses those that it does not know.
func (d *Device) evidence() {
	d.exec(command(opQueryAdapter, 0, 0x10), 0x110)
	for kind := range uint32(capTypes) {
		for _, which := range []uint32{capMax, capCur} {
			d.queryCap(kind<<1 | which)
		}
	}
	if out, err := d.exec(command(opQueryNICVport, 0, 0x10), 0x110); err == nil && d.card.MAC == [6]byte{} {
		d.card.MAC = [6]byte(out[0x106:])
	}
	if d.virtual {
		return
	}
	port := func(size int) message { return make(message, size).set("local_port", 0x00, 23, 16, 1) }
	d.access(regPMTU, accessRead, port(0x10))
	d.access(regPAOS, accessRead, port(0x10))
	d.access(regPTYS, accessRead, port(0x40).set("proto_mask", 0x00, 2, 0, 4))
	var module uint32 // of the port: each of a card's ports has another one
	if lanes, err := d.access(regPMLP, accessRead, port(0x40)); err == nil {
		module = lanes.get(0x04, 7, 0)
	}
	// The module's first 48 bytes of its lower page: identifier, status, temperature and voltage (SFF-8636, SFF-8472).
	d.access(regMCIA, accessRead, make(message, 0x40).set("module", 0x00, 23, 16, module).set("i2c_device_address",
		0x04, 31, 24, 0x50).set("size", 0x08, 15, 0, 48))
}
