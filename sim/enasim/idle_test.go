package enasim

import "testing"

// What a driver may set, the definitions give a meaning, and the model does not act on: the command succeeds, with a
// warning.
func TestAcceptedWithoutEffect(t *testing.T) {
	x := openRig(t, Options{})
	ctl := x.Alloc(4096)
	llq := fields{17: uint8(featLLQ), 30: uint16(1), 34: uint16(llq128), 38: uint16(2), 42: uint16(2)}
	hash := fields{3: uint8(4), 4: uint32(256), 8: ctl.IOVA}
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"GET_STATS: queue_idx is accepted", func() { x.OK(opGetStats, fields{20: uint16(1)}) }},
		{"GET_STATS: device_id is accepted", func() { x.OK(opGetStats, fields{22: uint16(7)}) }},
		{"GET_FEATURE 14: select 3 is accepted", func() { x.get(featMTU, fields{16: uint8(3)}) }},
		{"SET_FEATURE 26: select 3 is accepted", func() { x.set(featAENQ, fields{16: uint8(3)}) }},
		{"SET_FEATURE 4: accel_mode 0x8 is accepted", func() { x.OK(opSetFeature, llq.With(48, uint16(8|accelNoMeta))) }},
		{"SET_FEATURE 18: enabled_input_sort 0x8 is accepted", func() { x.set(featHashInput, hash.With(22, uint16(8))) }},
		{"SET_FEATURE 26: bytes after the 8 of the feature are set", func() { x.set(featAENQ, fields{28: uint32(1)}) }},
		{"SET_FEATURE 18: bytes after the 4", func() { x.set(featHashInput, hash.With(24, uint32(1))) }},
		{"SET_FEATURE 4: bytes after the 32", func() { x.OK(opSetFeature, llq.With(52, uint32(1))) }},
	} {
		c.do()
		x.ExpectWarning(c.what)
	}
	x.OK(opGetStats, fields{22: uint16(ownDevice)})
	x.get(featMTU, fields{16: uint8(selectCurrent)})
	x.set(featHashInput, hash.With(22, uint16(hashSort)))
	x.Clean()

	q := x.queue(dirRX, false, 0)
	for _, c := range []struct {
		ctrl uint32
		what string
	}{{0x0c, "comp_req is clear"}, {0x3c, "reserved bits set"}} {
		q.offer(ctl, 256, 0)
		q.sq.Bytes[16*int((q.tail-1)%testDepth)+3] &= 1
		q.sq.Bytes[16*int((q.tail-1)%testDepth)+3] |= byte(c.ctrl)
		x.Arrive(frame(60, 1))
		x.ExpectWarning(c.what)
	}
}

// A meta descriptor is for its own frame. Only if it asks for that, it is stored for later ones.
func TestMetaIsStoredOnRequest(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(4096)
	send := func(meta uint32) (sent bool) {
		first := uint32(txFirst)
		if meta != 0 {
			q.words(txFirst|txMeta|metaExt|metaType|meta, 0, 20|14<<8, 0)
			first = 0
		}
		copy(buf.Bytes, udpFrame())
		q.words(tx0&^txFirst|first|60, 1<<22|tx1L4|tx1Partial|l3IPv4|l4UDP<<8, uint32(buf.IOVA), uint32(buf.IOVA>>32))
		q.ring()
		x.Port.Settle(3)
		for q.take() != nil {
		}
		return x.Far.Recv(0) != nil
	}
	if !send(metaExt) || send(0) {
		t.Error("a descriptor that is not stored: sent without one")
	}
	x.ExpectError("no meta descriptor was sent with the frame or stored")
	if !send(metaStore) || !send(0) || !send(metaExt) || !send(0) {
		t.Error("with a stored descriptor: not sent")
	}
	x.Clean()
}

// udpFrame is a frame with an IPv4 and a UDP header.
func udpFrame() []byte {
	f := make([]byte, 60)
	copy(f[12:], []byte{8, 0, 0x45, 0, 0, 46})
	f[22], f[23], f[39] = 64, 17, 26
	return f
}
