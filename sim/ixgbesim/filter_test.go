package ixgbesim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestFilters(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	try := func(name string, dst [6]byte, want bool, vlan ...uint16) {
		t.Helper()
		f := frame(80)
		copy(f, dst[:])
		if len(vlan) > 0 {
			binary.BigEndian.PutUint16(f[12:], 0x8100)
			binary.BigEndian.PutUint16(f[14:], vlan[0])
		}
		before := r.m.Counters().RxFrames
		r.Arrive(f)
		check.Equal(t, r.m.Counters().RxFrames != before, want, name+": received %v")
	}
	us, other := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 7}
	multi := [6]byte{1, 0, 0x5e, 0, 0, 0xfb}
	try("us", us, true)
	try("another", other, false)
	try("broadcast", [6]byte{255, 255, 255, 255, 255, 255}, true)
	try("multicast", multi, false)
	v := uint32(multi[4])>>4 | uint32(multi[5])<<4
	r.wr(0x5200+4*uint64(v>>5), 1<<(v&31))
	try("multicast, table off", multi, false)
	r.wr(0x5090, 1<<2)
	try("multicast in the table", multi, true)
	r.set(0x5080, 1<<9)
	try("promiscuous", other, true)
	r.wr(0x5080, 0)
	try("broadcast, off", [6]byte{255, 255, 255, 255, 255, 255}, false)
	r.set(0x5088, 1<<30)
	try("VLAN filtered", us, false, 5)
	r.wr(0xa000, 1<<5)
	try("VLAN in the table", us, true, 0x2005)
}

func TestVLANStripInsert(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x1028, 1<<25|1<<30)
	r.fill(8)
	f := frame(80)
	copy(f[12:], []byte{0x81, 0, 0x20, 0x05})
	r.Arrive(f)
	d := r.rxDesc(0)
	if d[8]&(1<<3) == 0 || binary.LittleEndian.Uint16(d[14:]) != 0x2005 || binary.LittleEndian.Uint16(d[12:]) != 76 {
		t.Errorf("descriptor %x", d)
	}
	g := frame(76)
	r.desc(0x2005<<16|14<<9, 2<<20|1<<29, 0)
	r.desc(r.load(1, g), 76|advData|eop|rs|1<<30, 76<<14)
	r.kick()
	if got := r.Far.Recv(1 << 40); len(got) != 80 || !bytes.Equal(got[12:16], []byte{0x81, 0, 0x20, 5}) ||
		!bytes.Equal(got[16:], g[12:]) {
		t.Errorf("sent %x", got)
	}
	r.wr(0x4a80, 0x88a80001)
	r.desc(r.load(2, g), 76|advData|eop|rs|1<<30, 76<<14)
	r.kick()
	if got := r.Far.Recv(1 << 40); len(got) != 80 || !bytes.Equal(got[12:16], []byte{0x88, 0xa8, 0x20, 5}) {
		t.Errorf("with DMATXCTL.VT 88a8h: sent %x", got)
	}
	r.ExpectWarning("changes the VLAN EtherType")
}
