package evidence

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// stand replaces the device's MAC address and its port's GID.
var stand = [6]byte{0x02, 0, 0, 0, 0, 0x01}

// mask replaces the device's addresses everywhere in the file: as bytes, as EUI-64, and in register format.
func (f *File) mask() {
	f.Masked = true
	f.eraseSerial()
	for _, mac := range f.addresses() {
		f.replace(mac)
	}
	for _, e := range f.Trace { // a GID may be unrelated to the MAC address
		if g := gid(e); g != nil {
			f.bytes(func(b []byte) {
				swapAll(b, g, append([]byte{0xFE, 0x80}, make([]byte, 14)...))
				if own := g[8:]; !bytes.Equal(own, make([]byte, 8)) { // the device's GUID
					swapAll(b, own, make([]byte, 8))
				}
			})
		}
	}
}

// addresses returns the MAC addresses that drivers read.
func (f *File) addresses() (all [][6]byte) {
	add := func(b []byte) {
		if len(b) >= 6 && [6]byte(b) != [6]byte{} && [6]byte(b) != stand {
			all = append(all, [6]byte(b))
		}
	}
	if f.Info != nil {
		if mac, err := parseMAC(f.Info.MAC); err == nil {
			add(mac[:])
		}
	}
	for _, e := range f.Trace {
		if e.Name == cmdtrace.Address {
			add(e.In)
		}
	}
	return all
}

// gid returns the GID in an EFA's network attributes (GET_FEATURE).
func gid(e cmdtrace.Entry) []byte {
	if e.Kind == cmdtrace.Command && e.Name == "get network attributes" && len(e.Out) >= 24 &&
		!bytes.Equal(e.Out[8:24], make([]byte, 16)) {
		return bytes.Clone(e.Out[8:24])
	}
	return nil
}

// bytes calls do for every piece of raw data.
func (f *File) bytes(do func([]byte)) {
	do(f.Config)
	for i := range f.Trace {
		do(f.Trace[i].In)
		do(f.Trace[i].Out)
	}
}

func swapAll(b, old, new []byte) { copy(b, bytes.ReplaceAll(b, old, new)) }

func eui(mac [6]byte, flip, low byte) []byte {
	return []byte{mac[0] ^ flip, mac[1], mac[2], 0xFF, low, mac[3], mac[4], mac[5]}
}

// guid is Mellanox's form of a GUID: 03h 00h between the halves of the address.
func guid(mac [6]byte) []byte {
	return []byte{mac[0], mac[1], mac[2], 0x03, 0x00, mac[3], mac[4], mac[5]}
}

// eraseSerial clears the Device Serial Number capability (PCI Express Base 6.0 §7.9.3), which often contains the MAC
// address.
func (f *File) eraseSerial() {
	const serial, first = 0x0003, 0x100
	for at, n := first, 0; at >= first && at+12 <= len(f.Config) && n < 64; n++ {
		head := binary.LittleEndian.Uint32(f.Config[at:])
		if head&0xFFFF == serial {
			clear(f.Config[at+4 : at+12])
		}
		at = int(head >> 20 &^ 3)
	}
}

// replace puts the stand-in address in the place of mac wherever a card reports it: in bytes of either order, in
// EUI-64 and GUID forms, and in register accesses of one, two or four bytes.
func (f *File) replace(mac [6]byte) {
	reversed := func(b []byte) []byte {
		out := make([]byte, len(b))
		for i := range b {
			out[len(b)-1-i] = b[i]
		}
		return out
	}
	f.bytes(func(b []byte) {
		for _, form := range [][2][]byte{{mac[:], stand[:]}, {eui(mac, 0, 0xFF), eui(stand, 0, 0xFF)},
			{eui(mac, 0, 0xFE), eui(stand, 0, 0xFE)},
			{guid(mac), guid(stand)}, {eui(mac, 2, 0xFE), eui(stand, 2, 0xFE)},
			{eui(mac, 2, 0xFF), eui(stand, 2, 0xFF)}} {
			swapAll(b, form[0], form[1])
			swapAll(b, reversed(form[0]), reversed(form[1]))
		}
	})
	le := binary.LittleEndian
	run := 0 // bytewise reads of the address, one after the other
	for i := range f.Trace {
		e := &f.Trace[i]
		if e.Kind != cmdtrace.Read && e.Kind != cmdtrace.Write {
			continue
		}
		switch {
		case e.Width == 4 && uint32(e.Value) == le.Uint32(mac[:]):
			e.Value = uint64(le.Uint32(stand[:]))
		case e.Width == 4 && uint16(e.Value) == le.Uint16(mac[4:]):
			e.Value = e.Value&^0xFFFF | uint64(le.Uint16(stand[4:]))
		case e.Width == 4: // words of an EEPROM, in the upper half
			for w := 0; w < 6; w += 2 {
				if uint16(e.Value>>16) == le.Uint16(mac[w:]) {
					e.Value = e.Value&0xFFFF | uint64(le.Uint16(stand[w:]))<<16
					break
				}
			}
		}
		if e.Width == 1 && e.Kind == cmdtrace.Read && e.Value == uint64(mac[run]) {
			if run++; run == 6 {
				for j, n := i, 5; j >= 0 && n >= 0; j-- {
					if t := &f.Trace[j]; t.Kind == cmdtrace.Read && t.Width == 1 {
						t.Value = uint64(stand[n])
						n--
					}
				}
				run = 0
			}
		} else {
			run = 0
		}
	}
	old, new := net.HardwareAddr(mac[:]).String(), net.HardwareAddr(stand[:]).String()
	text := func(s string) string {
		s = strings.ReplaceAll(s, old, new)
		return strings.ReplaceAll(s, hex.EncodeToString(mac[:]), hex.EncodeToString(stand[:]))
	}
	f.Log, f.Error = text(f.Log), text(f.Error)
	if f.Info != nil {
		f.Info.MAC = text(f.Info.MAC)
		for i := range f.Info.Notes {
			f.Info.Notes[i] = text(f.Info.Notes[i])
		}
	}
	for i := range f.Trace {
		f.Trace[i].Err = text(f.Trace[i].Err)
	}
}
