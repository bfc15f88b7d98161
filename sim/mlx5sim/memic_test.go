package mlx5sim

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// Device memory is allocated in units, accessed through BAR 0 and by memory keys, and only where it is allocated.
func TestDeviceMemory(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	check.Equal(t, w32(x.caps(capGeneral), 0x34)>>23&1, 1, "device_memory is %d")
	caps := x.caps(capDeviceMem)
	first := w32(caps, 0x0c)
	if w32(caps, 0)>>31 != 1 || w32(caps, 8) != 0 || uint64(first)+memicSize != x.m.Config().BARs[0].Size ||
		w32(caps, 0x10) != memicSize || w32(caps, 0x14) != memicSize || w32(caps, 4) != 6<<16|6 {
		t.Errorf("device memory's capabilities: %x", caps[:32])
	}
	alloc := func(from, room, size, align uint32) []byte {
		return dwords(32, 0, 0x205<<16, 12, align, 0x14, from, 0x18, room, 0x1c, size)
	}
	for _, c := range []struct {
		from, room, size, align uint32
		says                    string
	}{
		{first, 4096, 0, 0, "memic_size is 0"},
		{first, 4096, 100, 0, "memic_size is 100"},
		{first, 4096, 64, 7, "log_memic_addr_alignment is 7"},
		{first, 4096, 8192, 0, "in pages"},
		{first + 64, 4096, 64, 0, "in pages"},
		{first - 4096, 4096, 64, 0, "in pages"},
		{first + memicSize - 4096, 8192, 64, 0, "in pages"},
	} {
		x.fails(alloc(c.from, c.room, c.size, c.align), 16, stBadParam, c.says)
	}
	at := func(in []byte) uint32 { return w32(x.do(in, 16), 12) }
	one, two := at(alloc(first, 4096, 128, 0)), at(alloc(first, 4096, 64, 2))
	check.Equal(t, one, first, "the first piece is at %#x")
	check.Equal(t, two, first+256, "one that is aligned to 256 bytes is at %#x")
	check.Equal(t, at(alloc(first, 4096, 128, 0)), first+128, "one that fits between them is at %#x")
	// somebody else may have the rest, which is no error of the driver
	out := x.exec(alloc(first, 4096, 4096, 0), 16)
	check.Equal(t, out[0], stNoRes, "what does not fit has status %#x")

	data := []byte("0123456789abcdef0123456789abcdef")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(x.m.WriteBAR(0, uint64(two), data))
	got := make([]byte, len(data))
	must(x.m.ReadBAR(0, uint64(two), got))
	check.Equal(t, string(got), string(data), "the memory has %q")
	for _, off := range []uint32{two + 63, two + 64, first - 4} {
		if x.m.ReadBAR(0, uint64(off), make([]byte, 4)) == nil || x.m.WriteBAR(0, uint64(off), make([]byte, 4)) == nil {
			t.Errorf("%#x can be accessed, and is not allocated", off)
		}
	}

	key := func(start, n uint32) []byte { // access mode 5
		return dwords(272, 0, 0x200<<16, 0x10, 1<<26|0xf<<10|1<<8, 0x14, 0xffffff<<8|0x42, 0x1c, x.pd, 0x24, start,
			0x2c, n)
	}
	x.fails(key(two, 65), 16, stBadParam, "is not allocated")
	mkey := w32(x.do(key(two+8, 32), 16), 8)
	x.fails(dwords(32, 0, 0x206<<16, 0x14, two, 0x18, 64), 16, stBadResState, "in use by 1 memory keys")
	pieces, err := x.m.translate(mkey<<8|0x42, 4, 28, x.pd, false, localWrite)
	must(err)
	must(bus{x.m}.DMAWrite(pieces[0].At, bytes.Repeat([]byte{'x'}, 4)))
	must(bus{x.m}.DMARead(pieces[0].At, got[:20]))
	check.Equal(t, string(got[:20]), "xxxx"+string(data[16:32]), "through the key, the memory has %q")
	if _, err := x.m.translate(mkey<<8|0x42, 4, 29, x.pd, false, localWrite); err == nil {
		t.Error("29 bytes at 4 of a key of 32 can be accessed")
	}
	x.do(dwords(16, 0, 0x202<<16, 8, mkey), 16)
	x.fails(dwords(32, 0, 0x206<<16, 0x14, two, 0x18, 128), 16, stBadRes, "no device memory")
	for _, p := range []uint32{one, two, first + 128} {
		size := map[bool]uint32{true: 64, false: 128}[p == two]
		x.do(dwords(32, 0, 0x206<<16, 0x14, p, 0x18, size), 16)
	}
	if x.m.ReadBAR(0, uint64(two), got) == nil {
		t.Error("freed memory can be accessed")
	}

	x = openRig(t, Options{})
	x.fails(alloc(first, 4096, 64, 0), 16, stBadOp, "device_memory is not there")
}
