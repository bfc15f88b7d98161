package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
)

// section is a section that systemd's EFI stub reads.
type section struct {
	name string
	body []byte
}

// unify appends sections to the stub, which is a PE file (Microsoft's "PE Format"): a unified kernel image. Their
// headers go into the free space that the stub has behind its own.
func unify(stub []byte, add []section) ([]byte, error) {
	f, err := pe.NewFile(bytes.NewReader(stub))
	if err != nil {
		return nil, fmt.Errorf("EFI stub: %w", err)
	}
	opt, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || len(f.Sections) == 0 {
		return nil, fmt.Errorf("EFI stub: not a 64-bit PE file with sections")
	}
	const (
		headerSize = 40
		flags      = pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ
	)
	signature := int(binary.LittleEndian.Uint32(stub[0x3c:]))
	coff := signature + 4
	optional := coff + 20
	header := optional + int(f.FileHeader.SizeOfOptionalHeader) + headerSize*len(f.Sections)
	end := header + headerSize*len(add)
	if end > int(opt.SizeOfHeaders) {
		return nil, fmt.Errorf("EFI stub: room for %d more section headers, %d needed",
			(int(opt.SizeOfHeaders)-header)/headerSize, len(add))
	}
	align := func(n, to uint32) uint32 { return (n + to - 1) / to * to }
	address, initialized := uint32(0), opt.SizeOfInitializedData
	for _, s := range f.Sections {
		address = max(address, s.VirtualAddress+s.VirtualSize)
	}
	out := bytes.Clone(stub)
	for i, s := range add {
		address = align(address, opt.SectionAlignment)
		offset, size := align(uint32(len(out)), opt.FileAlignment), align(uint32(len(s.body)), opt.FileAlignment)
		out = append(out, make([]byte, int(offset)-len(out))...)
		out = append(append(out, s.body...), make([]byte, int(size)-len(s.body))...)
		h := pe.SectionHeader32{VirtualSize: uint32(len(s.body)), VirtualAddress: address, SizeOfRawData: size,
			PointerToRawData: offset,
			Characteristics:  flags}
		copy(h.Name[:], s.name)
		if _, err := binary.Encode(out[header+i*headerSize:], binary.LittleEndian, h); err != nil {
			return nil, err
		}
		address += uint32(len(s.body))
		initialized += size
	}
	binary.LittleEndian.PutUint16(out[coff+2:], uint16(len(f.Sections)+len(add))) // NumberOfSections
	binary.LittleEndian.PutUint32(out[optional+8:], initialized)                  // SizeOfInitializedData
	binary.LittleEndian.PutUint32(out[optional+56:], align(address, opt.SectionAlignment))
	binary.LittleEndian.PutUint32(out[optional+64:], 0) // CheckSum: none
	return out, nil
}
