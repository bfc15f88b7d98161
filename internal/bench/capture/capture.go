// Package capture reads the capture times of the packets in a pcap or pcapng file. It skips the packets themselves.
package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// Most is how many packets of a file are used. The rest is ignored.
const Most = 1 << 20

// maxBlock is the greatest plausible size of a block or packet in a file.
const maxBlock = 1 << 26

// ReadFile returns the times of the packets of a file, in ns since 1970, in the order of the file.
func ReadFile(path string) ([]int64, error) {
	f, err := atomicfile.Input(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	times, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return times, nil
}

// Read returns the times of the packets of a pcap or pcapng file, in ns since 1970. A file that is truncated within a
// packet returns the packets before it.
func Read(from io.Reader) ([]int64, error) {
	r := bufio.NewReaderSize(from, 1<<16)
	magic, err := r.Peek(4)
	if err != nil {
		return nil, errors.New("not a pcap or pcapng file: it has fewer than four bytes")
	}
	if binary.BigEndian.Uint32(magic) == sectionHeader {
		return readNG(r)
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic) {
		case microseconds:
			return readPcap(r, order, 1000)
		case nanoseconds:
			return readPcap(r, order, 1)
		}
	}
	return nil, fmt.Errorf("not a pcap or pcapng file: it begins with %#x", magic)
}

// The magic numbers of a pcap file, by unit of the fractions of a second.
const (
	microseconds = 0xa1b2c3d4
	nanoseconds  = 0xa1b23c4d
)

// readPcap reads a file of the older format: a header of 24 bytes, and a header of 16 bytes before each packet.
func readPcap(r *bufio.Reader, order binary.ByteOrder, unit int64) (times []int64, err error) {
	if _, err := r.Discard(24); err != nil {
		return nil, errors.New("the file header is cut off")
	}
	var head [16]byte // seconds, fraction, bytes in the file, bytes of the packet
	for len(times) < Most {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return times, ended(err)
		}
		size := order.Uint32(head[8:])
		if size > maxBlock {
			return nil, fmt.Errorf("packet %d has %d bytes", len(times)+1, size)
		}
		if _, err := r.Discard(int(size)); err != nil {
			return times, ended(err)
		}
		times = append(times, int64(order.Uint32(head[0:]))*1e9+int64(order.Uint32(head[4:]))*unit)
	}
	return times, nil
}

// Relevant block types of a pcapng file.
const (
	sectionHeader    = 0x0a0d0d0a // the same in both byte orders
	interfaceBlock   = 1
	obsoletePacket   = 2
	enhancedPacket   = 6
	byteOrderMagic   = 0x1a2b3c4d
	optionResolution = 9
	optionOffset     = 14
)

// clock is the time format of an interface in a section.
type clock struct {
	unit   float64 // ns
	offset int64   // ns
}

// readNG reads a pcapng file: blocks with a type, a length, a body and the length again.
func readNG(r *bufio.Reader) (times []int64, err error) {
	var order binary.ByteOrder = binary.LittleEndian
	var clocks []clock
	var head [12]byte
	for len(times) < Most {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return times, ended(err)
		}
		section := binary.BigEndian.Uint32(head[:]) == sectionHeader
		if section {
			if order, clocks = binary.LittleEndian, nil; order.Uint32(head[8:]) != byteOrderMagic {
				order = binary.BigEndian
			}
			if order.Uint32(head[8:]) != byteOrderMagic {
				return nil, fmt.Errorf("a section header has the byte order magic %#x", head[8:])
			}
		}
		kind, size := order.Uint32(head[0:]), order.Uint32(head[4:])
		if size < 12 || size > maxBlock || size%4 != 0 {
			return nil, fmt.Errorf("a block of type %d has %d bytes", kind, size)
		}
		if size == 12 { // no body: the value just read is the repeated length
			continue
		}
		rest := int(size) - 12
		if section || kind != interfaceBlock && kind != enhancedPacket && kind != obsoletePacket {
			if _, err := r.Discard(rest); err != nil {
				return times, ended(err)
			}
			continue
		}
		want := rest
		if kind != interfaceBlock {
			want = min(rest, 8) // the time, followed by the packet
		}
		if want > 1<<16 {
			return nil, fmt.Errorf("the description of an interface has %d bytes", want)
		}
		body := make([]byte, 4+want)
		copy(body, head[8:])
		if _, err := io.ReadFull(r, body[4:]); err != nil {
			return times, ended(err)
		}
		if _, err := r.Discard(rest - want); err != nil {
			return times, ended(err)
		}
		if kind == interfaceBlock {
			c, err := interfaceClock(body[:len(body)-4], order)
			if err != nil {
				return nil, err
			}
			clocks = append(clocks, c)
			continue
		}
		if len(body) < 12 {
			return nil, fmt.Errorf("packet %d has no time", len(times)+1)
		}
		id := int(order.Uint32(body[0:]))
		if kind == obsoletePacket {
			id = int(order.Uint16(body[0:]))
		}
		if id >= len(clocks) {
			return nil, fmt.Errorf("packet %d is of interface %d, and the section has %d", len(times)+1, id,
				len(clocks))
		}
		at, err := clocks[id].time(uint64(order.Uint32(body[4:]))<<32 | uint64(order.Uint32(body[8:])))
		if err != nil {
			return nil, fmt.Errorf("packet %d: %w", len(times)+1, err)
		}
		times = append(times, at)
	}
	return times, nil
}

// interfaceClock reads the options of an interface block: link type, reserved, snapshot length, then options with a
// code, a length and a value that is padded to four bytes.
func interfaceClock(body []byte, order binary.ByteOrder) (clock, error) {
	c := clock{unit: 1000}
	if len(body) < 8 {
		return c, errors.New("the description of an interface is cut off")
	}
	for o := body[8:]; len(o) >= 4; {
		code, size := order.Uint16(o), int(order.Uint16(o[2:]))
		if code == 0 {
			break
		}
		if len(o) < 4+size {
			return c, errors.New("an option of an interface is cut off")
		}
		value := o[4 : 4+size]
		switch {
		case code == optionResolution && size == 1:
			exponent := -float64(value[0] & 0x7f)
			if c.unit = 1e9 * math.Pow(10, exponent); value[0]&0x80 != 0 {
				c.unit = 1e9 * math.Pow(2, exponent)
			}
		case code == optionOffset && size == 8:
			seconds := int64(order.Uint64(value))
			if seconds < -1<<33 || seconds > 1<<33 {
				return c, fmt.Errorf("the clock of an interface is %d s off", seconds)
			}
			c.offset = seconds * 1e9
		}
		o = o[min(4+(size+3)&^3, len(o)):]
	}
	return c, nil
}

// time converts a count of the clock's units. It is exact if a unit is a whole number of ns.
func (c clock) time(count uint64) (int64, error) {
	if unit := int64(c.unit); c.unit >= 1 && float64(unit) == c.unit && count <= math.MaxInt64/2/uint64(unit) {
		return int64(count)*unit + c.offset, nil
	}
	ns := float64(count) * c.unit
	if !(ns < 1<<62) {
		return 0, fmt.Errorf("invalid timestamp of %g ns", ns)
	}
	return int64(ns) + c.offset, nil
}

// ended is the error of a read: nil if the file just ends there.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
