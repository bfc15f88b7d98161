package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// stub returns a PE file with one section and room for more headers.
func stub(t *testing.T, headers uint32) []byte {
	t.Helper()
	b := make([]byte, 0x40)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x40)
	b = append(b, "PE\x00\x00"...)
	add := func(v any) { b = must.Get(binary.Append(b, binary.LittleEndian, v))(t) }
	add(pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1, SizeOfOptionalHeader: 240})
	add(pe.OptionalHeader64{Magic: 0x20b, SectionAlignment: 0x1000, FileAlignment: 0x200, SizeOfHeaders: headers,
		SizeOfImage: 0x2000, NumberOfRvaAndSizes: 16})
	s := pe.SectionHeader32{VirtualSize: 5, VirtualAddress: 0x1000, SizeOfRawData: 0x200, PointerToRawData: headers}
	copy(s.Name[:], ".text")
	add(s)
	b = append(b, make([]byte, int(headers)-len(b))...)
	return append(b, bytes.Repeat([]byte{1}, 0x200)...)
}

// A PE reader finds the sections, aligned, one behind the other, and the size of all of them.
func TestUnify(t *testing.T) {
	add := []section{{".osrel", []byte("ID=x")}, {".initrd", bytes.Repeat([]byte{7}, 5000)},
		{".linux", bytes.Repeat([]byte{8}, 700)}}
	out := must.Get(unify(stub(t, 0x400), add))(t)
	f := must.Get(pe.NewFile(bytes.NewReader(out)))(t)
	if len(f.Sections) != 4 {
		t.Fatalf("%d sections", len(f.Sections))
	}
	end := uint32(0)
	for i, s := range f.Sections {
		if s.VirtualAddress%0x1000 != 0 || s.Offset%0x200 != 0 || s.VirtualAddress < end {
			t.Errorf("%s: %+v", s.Name, s.SectionHeader)
		}
		end = s.VirtualAddress + s.VirtualSize
		if i == 0 {
			continue
		}
		if body := must.Get(s.Data())(t); s.Name != add[i-1].name || !bytes.HasPrefix(body, add[i-1].body) ||
			s.VirtualSize != uint32(len(add[i-1].body)) {
			t.Errorf("%s: %d bytes", s.Name, s.VirtualSize)
		}
	}
	if size := f.OptionalHeader.(*pe.OptionalHeader64).SizeOfImage; size < end || size%0x1000 != 0 {
		t.Errorf("SizeOfImage %#x, the sections end at %#x", size, end)
	}
	if _, err := unify(stub(t, 0x200), append(add, add...)); err == nil || !strings.Contains(err.Error(), "room for") {
		t.Errorf("headers without room: %v", err)
	}
}
