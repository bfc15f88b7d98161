package corpus

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/rebound-nic/rebound/proof/oracle"
)

// Mutator generates frames from Requests, each with up to four changes. Significant bytes are changed more often than
// others. Half of the frames get correct checksums, so that the code after the checksum checks is reached.
type Mutator struct {
	rnd   *rand.Rand
	seeds [][]byte
	buf   []byte
}

// NewMutator returns a Mutator whose frames depend only on the two seeds.
func NewMutator(seed, stream uint64) *Mutator {
	m := &Mutator{rnd: rand.New(rand.NewPCG(seed, stream)), buf: make([]byte, 0, 2048)}
	for tags := range 3 {
		for _, q := range Requests(tags) {
			m.seeds = append(m.seeds, q.Frame)
		}
	}
	return m
}

// telling has bytes that have a meaning in some header.
var telling = []byte{0, 1, 2, 6, 7, 8, 17, 44, 58, 0x45, 0x46, 0x60, 0x81, 0x88, 0xa8, 0xdd, 0x86, 127, 128, 129, 135,
	136, 224, 255}

// tellingWords are ports, lengths and EtherTypes.
var tellingWords = []uint16{0, 1, 7, 8, 19, 53, 862, 1023, 1024, 1900, 9000, 40000, 0xffff, 0x0800, 0x86dd, 0x8100}

// Next returns the next frame, which is valid until the next call.
func (m *Mutator) Next() []byte {
	r := m.rnd.Uint64()
	pick := func(n int) int { // uses as few random bits as necessary
		v := int(r % uint64(n))
		if r /= uint64(n); r < 1<<24 {
			r = m.rnd.Uint64()
		}
		return v
	}
	f := append(m.buf[:0], m.seeds[pick(len(m.seeds))]...)
	for range pick(5) {
		if len(f) == 0 {
			break
		}
		switch i := pick(len(f)); pick(10) {
		case 0:
			f = f[:i]
		case 8:
			if i &^= 1; i+2 <= len(f) {
				be.PutUint16(f[i:], tellingWords[pick(len(tellingWords))])
			}
		case 9:
			if f = f[:i]; len(f) > 0 {
				fit(f)
			}
		case 1:
			f = append(f, f[:min(i, cap(f)-len(f))]...)
		case 2, 3:
			f[i] = telling[pick(len(telling))]
		case 4, 5, 6:
			f[min(i, 12+pick(44), len(f)-1)] ^= 1 << pick(8)
		default:
			f[i] = byte(pick(256))
		}
	}
	if pick(2) == 0 {
		fixChecksums(f)
	}
	return f
}

var be = binary.BigEndian

// network returns the start of the packet in f, after up to two tags, and whether at least n bytes follow.
func network(f []byte, n int) (at int, ok bool) {
	at = 14
	for at < 22 && len(f) >= at+4 && (be.Uint16(f[at-2:]) == 0x8100 || be.Uint16(f[at-2:]) == 0x88a8) {
		at += 4
	}
	return at, len(f) >= at+n
}

// fit adjusts the lengths in the headers of frame f, as far as they can be parsed.
func fit(f []byte) {
	l3, ok := network(f, 28)
	if !ok {
		return
	}
	switch p := f[l3:]; be.Uint16(f[l3-2:]) {
	case 0x0800:
		be.PutUint16(p[2:], uint16(len(p)))
		if p[9] == 17 {
			be.PutUint16(p[24:], uint16(len(p)-20))
		}
	case 0x86dd:
		if len(p) < 48 {
			return
		}
		be.PutUint16(p[4:], uint16(len(p)-40))
		if p[6] == 17 {
			be.PutUint16(p[44:], uint16(len(p)-40))
		}
	}
}

func fixChecksums(f []byte) {
	l3, ok := network(f, 28)
	if !ok {
		return
	}
	p := f[l3:]
	var s, hosts []byte
	var protocol byte
	switch be.Uint16(f[l3-2:]) {
	case 0x0800:
		be.PutUint16(p[10:], 0)
		be.PutUint16(p[10:], ^oracle.Sum(p[:20]))
		n := int(be.Uint16(p[2:]))
		if n < 28 || n > len(p) {
			return
		}
		s, hosts, protocol = p[20:n], p[12:20], p[9]
	case 0x86dd:
		if len(p) < 48 {
			return
		}
		n := 40 + int(be.Uint16(p[4:]))
		if n < 48 || n > len(p) {
			return
		}
		s, hosts, protocol = p[40:n], p[8:40], p[6]
	default:
		return
	}
	at := 2
	switch protocol {
	case 1:
		hosts = nil
	case 17:
		if at = 6; be.Uint16(s[6:]) == 0 {
			return // it has no checksum
		}
	}
	be.PutUint16(s[at:], 0)
	sum := oracle.PseudoSum(hosts, protocol, s)
	if protocol == 1 {
		sum = oracle.Sum(s)
	}
	if sum = ^sum; sum == 0 && protocol == 17 {
		sum = 0xffff
	}
	be.PutUint16(s[at:], sum)
}
