package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var packets = []time.Time{time.Unix(1_700_000_000, 123_456_000), time.Unix(1_700_000_000, 123_999_000),
	time.Unix(1_700_000_001, 5_000), time.Unix(1_700_000_001, 5_000)}

// samples are files that gopacket wrote.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	data := make([]byte, 61) // padded in pcapng
	var micro, nano, ng bytes.Buffer
	w, n, g := pcapgo.NewWriter(&micro), pcapgo.NewWriterNanos(&nano),
		must.Get(pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet))(t)
	must.OK(t, errors.Join(w.WriteFileHeader(96, layers.LinkTypeEthernet),
		n.WriteFileHeader(96, layers.LinkTypeEthernet)))
	for _, at := range packets {
		info := gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: len(data) + 7}
		must.OK(t, errors.Join(w.WritePacket(info, data), n.WritePacket(info, data), g.WritePacket(info, data)))
	}
	must.OK(t, g.Flush())
	return map[string][]byte{"pcap": micro.Bytes(), "pcap in ns": nano.Bytes(), "pcapng": ng.Bytes()}
}

func TestRead(t *testing.T) {
	var want []int64
	for _, at := range packets {
		want = append(want, at.UnixNano())
	}
	for name, b := range samples(t) {
		got, err := Read(bytes.NewReader(b))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
		cut, err := Read(bytes.NewReader(b[:len(b)-3]))
		if err != nil || !slices.Equal(cut, want[:3]) && !slices.Equal(cut, want) {
			t.Errorf("%s, cut off: %v, %v", name, cut, err)
		}
	}
	swapped := samples(t)["pcap"]
	words := func(at, n int) {
		for i := range n {
			slices.Reverse(swapped[at+4*i : at+4*i+4])
		}
	}
	words(0, 1)
	for at := 24; at < len(swapped); at += 16 + 61 {
		words(at, 4)
	}
	if got, err := Read(bytes.NewReader(swapped)); err != nil || !slices.Equal(got, want) {
		t.Errorf("other byte order: %v, %v", got, err)
	}
}

func block(order binary.ByteOrder, kind uint32, body []byte) []byte {
	b, _ := binary.Append(nil, order, []uint32{kind, uint32(len(body) + 12)})
	b = append(b, body...)
	return append(b, b[4:8]...)
}

// Resolutions and offsets of interfaces, both byte orders, and blocks that are ignored.
func TestClocksOfInterfaces(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		word := func(v ...uint32) (b []byte) {
			b, _ = binary.Append(nil, order, v)
			return b
		}
		option := func(code uint16, value ...byte) []byte {
			b, _ := binary.Append(nil, order, []uint16{code, uint16(len(value))})
			b = append(b, value...)
			return append(b, make([]byte, (4-len(value)%4)%4)...)
		}
		offset, _ := binary.Append(nil, order, uint64(100))
		face := func(options ...[]byte) []byte {
			return block(order, interfaceBlock, append(word(1, 0), bytes.Join(options, nil)...))
		}
		packet := func(id uint32, count uint64) []byte {
			return block(order, enhancedPacket, word(id, uint32(count>>32), uint32(count), 0, 0))
		}
		file := bytes.Join([][]byte{
			block(order, sectionHeader, word(byteOrderMagic, 1, 0xffffffff, 0xffffffff)),
			face(), face(option(optionResolution, 9), option(0)),
			face(option(2, 'e', 't', 'h', '0', '!'), option(optionResolution, 0x80|10)),
			face(option(optionOffset, offset...)),
			block(order, 4, word(1, 2, 3)), // name resolution
			packet(0, 7), packet(1, 7), packet(2, 1024), packet(3, 7), packet(1, 1<<60),
		}, nil)
		got, err := Read(bytes.NewReader(file))
		if want := []int64{7000, 7, 1e9, 100e9 + 7000, 1 << 60}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %v, %v, want %v", order, got, err, want)
		}
		// A second section has separate interfaces.
		again := append(slices.Clone(file), block(order, sectionHeader,
			word(byteOrderMagic, 1, 0xffffffff, 0xffffffff))...)
		_, err = Read(bytes.NewReader(append(again, packet(0, 7)...)))
		check.Fails(t, "a packet of an interface that was not described", err, nil, "interface 0")
	}
}

func TestNoCapture(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "short": "abc", "text": "time,rtt\n1,2\n",
		"a gzip": "\x1f\x8b\x08\x00\x00"} {
		check.Fails(t, name, check.Err(Read(strings.NewReader(text))), nil, "not a pcap or pcapng file")
	}
	check.Fails(t, "a missing file", check.Err(ReadFile("/no/such/file")), nil)
}

// What is wrong in a file that begins like a capture, or that it just ends there.
func TestMalformed(t *testing.T) {
	le := binary.LittleEndian
	word := func(v ...uint32) (b []byte) {
		b, _ = binary.Append(nil, le, v)
		return b
	}
	section := block(le, sectionHeader, word(byteOrderMagic, 1, 0xffffffff, 0xffffffff))
	face := func(options ...uint32) []byte {
		return block(le, interfaceBlock, append(word(1, 0), word(options...)...))
	}
	offset := func(low, high uint32) []byte { return face(optionOffset|8<<16, low, high) }
	head := append(word(microseconds), make([]byte, 20)...)
	packet := block(le, enhancedPacket, word(0, 0, 7, 0, 0))
	for _, c := range []struct {
		name  string
		parts [][]byte
		fails string // "" if the file ends there
		found int
	}{
		{"a file header", [][]byte{head[:23]}, "the file header is cut off", 0},
		{"no packet", [][]byte{head}, "", 0},
		{"the largest packet", [][]byte{head, word(1, 2, maxBlock, 9)}, "", 0},
		{"a larger one", [][]byte{head, word(1, 2, maxBlock+1, 9)}, "packet 1 has 67108865 bytes", 0},
		{"magic", [][]byte{block(le, sectionHeader, word(7, 1))}, "a section header has the byte order magic", 0},
		{"a short block", [][]byte{section, word(interfaceBlock, 8, 8)}, "a block of type 1 has 8 bytes", 0},
		{"an odd block", [][]byte{section, word(interfaceBlock, 18, 8)}, "a block of type 1 has 18 bytes", 0},
		{"a long block", [][]byte{section, word(9, maxBlock+4, 8)}, "a block of type 9 has 67108868 bytes", 0},
		{"a block without a body", [][]byte{section, word(9, 12, 12), face(), packet}, "", 1},
		{"a block that is cut off", [][]byte{section, face(), packet, word(9, 400, 8)}, "", 1},
		{"an interface that is cut off", [][]byte{section, word(interfaceBlock, 400, 8)}, "", 0},
		{"a packet that is cut off", [][]byte{section, face(), packet[:30]}, "", 0},
		{"a long interface", [][]byte{section, block(le, interfaceBlock, make([]byte, 1<<16+4))},
			"the description of an interface has 65540 bytes", 0},
		{"a short interface", [][]byte{section, block(le, interfaceBlock, word(1))}, "of an interface is cut off", 0},
		{"an option", [][]byte{section, face(2|5<<16, 0)}, "an option of an interface is cut off", 0},
		{"no time", [][]byte{section, face(), block(le, enhancedPacket, word(0))}, "packet 1 has no time", 0},
		{"another interface", [][]byte{section, face(), block(le, enhancedPacket, word(1, 0, 0))},
			"packet 1 is of interface 1, and the section has 1", 0},
		{"an obsolete packet", [][]byte{section, face(), block(le, obsoletePacket, word(5<<16, 0, 7))}, "", 1},
		{"the latest clock", [][]byte{section, offset(0, 2), packet}, "", 1},
		{"a later clock", [][]byte{section, offset(1, 2)}, "the clock of an interface is 8589934593 s off", 0},
		{"an earlier clock", [][]byte{section, offset(0xffffffff, 0xfffffffd)}, "is -8589934593 s off", 0},
		{"a time", [][]byte{section, face(optionResolution|1<<16, 0), block(le, enhancedPacket, word(0, 2, 2))},
			"packet 1: invalid timestamp of 8.589", 0},
	} {
		got, err := Read(bytes.NewReader(bytes.Join(c.parts, nil)))
		if c.fails == "" {
			check.OK(t, err)
		} else {
			check.Fails(t, c.name, err, nil, c.fails)
		}
		check.Equal(t, len(got), c.found, c.name+": %d packets")
	}
}

// No file causes a crash, uses much memory, or returns an unbounded number of times.
func FuzzRead(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b)
	}
	f.Add(block(binary.LittleEndian, sectionHeader, []byte{0x4d, 0x3c, 0x2b, 0x1a}))
	f.Fuzz(func(t *testing.T, b []byte) {
		times, err := Read(bytes.NewReader(b))
		if len(times) > len(b)/16 {
			t.Errorf("%d packets in %d bytes, %v", len(times), len(b), err)
		}
	})
}
