package simtest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strings"
)

// Flips gives a device an input, and then each input that differs from it in one bit.
type Flips struct {
	*Rig
	Little bool                                         // the input's words are little-endian
	First  int                                          // byte of the input from which on bits are inverted
	Build  func() []byte                                // returns an input; called again after one that had an effect
	Run    func(in []byte) (answer string, effect bool) // executes an input
	in     []byte
}

// answer is what a device answers to the inversion of some bits of one word, or of the same bits of successive words.
type answer struct {
	text string // with # for numbers
	bits uint32
	// the only bit of a word that was not zero, and "0" and "00" for words without any: this one, and also the next
	alone uint32
	more  string
	sum   uint32 // of the texts with their numbers
}

var number = regexp.MustCompile(`\b(0x)?[0-9a-f]*[0-9][0-9a-f]*h?\b`)

// String lists the device's answers. A line has the offsets of the first and the last of successive words of 32 bits,
// the bits that cause an answer when they are inverted, those that do alone in their word, and the answer with a
// checksum of its numbers. Bits that change no answer are left out.
func (f *Flips) String() string {
	f.Helper()
	f.in = f.Build()
	f.Port.ForgetViolations()
	base := f.ask(f.in)
	text := "= " + base + "\n"
	from, last := 0, []answer(nil)
	flush := func(to int) {
		for _, a := range last {
			text += fmt.Sprintf("%03x-%03x %08x %08x %s %s [%04x]\n", from, to-4, a.bits, a.alone, a.more, a.text,
				a.sum&0xffff)
		}
	}
	for at := f.First; at+4 <= len(f.in); at += 4 {
		all := f.word(at, base)
		if !slices.EqualFunc(all, last, sameBits) {
			flush(at)
			from, last = at, all
			continue
		}
		for i := range all {
			last[i].sum = last[i].sum*31 + all[i].sum
		}
	}
	flush(len(f.in))
	return text
}

func sameBits(a, b answer) bool {
	return a.text == b.text && a.bits == b.bits && a.alone == b.alone && a.more == b.more
}

// ask executes an input, and adds the violations that the model reports to its answer.
func (f *Flips) ask(in []byte) string {
	f.Helper()
	said, effect := f.Run(in)
	for _, v := range f.Port.Violations() {
		said += "; " + strings.TrimPrefix(v, f.Port.Name()+": ")
	}
	if effect {
		f.in = f.Build()
	}
	f.Port.ForgetViolations()
	return said
}

const wholeWords = 0x1d0 // after these bytes, only one bit of each word is inverted: long inputs repeat what they have

// word gives the device the inputs that differ from f.in in the word at an offset.
func (f *Flips) word(at int, base string) (all []answer) {
	f.Helper()
	n := 32
	if at >= wholeWords {
		n = 1
	}
	order := binary.ByteOrder(binary.BigEndian)
	if f.Little {
		order = binary.LittleEndian
	}
	try := func(change func(in []byte)) *answer {
		in := slices.Clone(f.in)
		change(in[at:])
		said := f.ask(in)
		if said == base {
			return &answer{}
		}
		text := number.ReplaceAllString(said, "#")
		i := slices.IndexFunc(all, func(a answer) bool { return a.text == text })
		if i < 0 {
			i = len(all)
			all = append(all, answer{text: text})
		}
		all[i].sum = crc32.Update(all[i].sum, crc32.IEEETable, []byte(said))
		return &all[i]
	}
	for bit := range n {
		try(func(in []byte) { order.PutUint32(in, order.Uint32(in)^1<<bit) }).bits |= 1 << bit
	}
	if order.Uint32(f.in[at:]) == 0 {
		return all
	}
	for bit := range n {
		try(func(in []byte) { order.PutUint32(in, 1<<bit) }).alone |= 1 << bit
	}
	try(func(in []byte) { order.PutUint32(in, 0) }).more += "0"
	try(func(in []byte) { clear(in[:min(8, len(in))]) }).more += "00"
	return all
}
