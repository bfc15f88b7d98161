package mlx5

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// recorded is one command of Linux's driver to a real ConnectX-4, and the card's answer.
type recorded struct {
	in, out message
	inLen   int
	outLen  int
}

func recording(t *testing.T) (all []recorded) {
	f, err := os.Open("../../../../shared/witness/mlx5_core-connectx4-fw14.12.1220.txt.gz")
	if err != nil {
		t.Skip("the recording of a ConnectX-4 is not here: ", err)
	}
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	head := regexp.MustCompile(`dump command .*\(0x[0-9a-f]+\) (INPUT|OUTPUT)`)
	line := regexp.MustCompile(`\] [0-9a-f]{3,}: ((?:[0-9a-f]{8} ?){4})`)
	var dumps [][]byte
	var input []bool
	for s := bufio.NewScanner(z); s.Scan(); {
		if m := head.FindStringSubmatch(s.Text()); m != nil {
			dumps, input = append(dumps, nil), append(input, m[1] == "INPUT")
		} else if m := line.FindStringSubmatch(s.Text()); m != nil && len(dumps) > 0 {
			b := must.Get(hex.DecodeString(strings.ReplaceAll(m[1], " ", "")))(t)
			dumps[len(dumps)-1] = append(dumps[len(dumps)-1], b...)
		}
	}
	data := func(dump []byte, inline, n int) message {
		m := append(message{}, dump[inline:inline+entryInline]...)
		for at := entrySize; at+boxSize <= len(dump); at += boxSize {
			m = append(m, dump[at:at+boxData]...)
		}
		return m[:min(n, len(m))]
	}
	for i := 0; i+1 < len(dumps); i += 2 {
		if !input[i] || input[i+1] {
			t.Fatalf("dump %d is not an input followed by its output", i)
		}
		e := message(dumps[i][:entrySize])
		check.Equal(t, xor(e), 0xFF, "signature of an entry: %#x")
		r := recorded{inLen: int(e.get(entryInLen, 31, 0)), outLen: int(e.get(entryOutLen, 31, 0))}
		r.in, r.out = data(dumps[i], entryIn, r.inLen), data(dumps[i+1], entryOut, r.outLen)
		all = append(all, r)
	}
	return all
}

// Our start gets the card's recorded answers. When both send the same command, ours equals Linux's, except for the
// fields that each driver chooses, which are listed here.
func TestRecordedCommands(t *testing.T) {
	rec := recording(t)
	find := func(in message) *recorded {
		for i, r := range rec {
			if r.in.opcode() == in.opcode() && r.in.opMod() == in.opMod() {
				return &rec[i]
			}
		}
		return nil
	}
	// Fields that each driver chooses: dword, bits.
	type field struct{ off, hi, lo int }
	choice := map[opcode][]field{
		opManagePages: {{0x0C, 31, 0}}, // how many pages in one command
		// log_max_qp: we have no QPs
		opSetHCACap: {{0x10 + 0x10, 4, 0}},
		// size, vector, pages, events
		opCreateEQ: {{0x10 + 0x0C, 28, 24}, {0x10 + 0x14, 11, 0}, {0x10 + 0x18, 28, 24}, {0x5C, 31, 0}},
	}
	// The rest is addresses, or register data that the recording lacks.
	head := map[opcode]int{opManagePages: 0x10, opCreateEQ: 0x110, opAccessReg: 0x10}
	sized := map[opcode]bool{opManagePages: true, opCreateEQ: true} // commands whose length a driver chooses

	f := newFirmware(t)
	compared := map[opcode]int{}
	f.seen = func(e []byte, _, _ [][]byte) {
		in := message(e[entryIn:entryOut])
		if r := find(in); r != nil && !sized[in.opcode()] {
			check.Equal(t, int(message(e).get(entryInLen, 31, 0)), r.inLen,
				fmt.Sprint(in.opcode())+": input of %#x bytes")
			check.Equal(t, int(message(e).get(entryOutLen, 31, 0)), r.outLen,
				fmt.Sprint(in.opcode())+": output of %#x bytes")
		}
	}
	f.answer = func(in message, n int) message {
		r := find(in)
		if r == nil {
			return make(message, n)
		}
		compared[in.opcode()]++
		ours, theirs := append(message{}, in...), append(message{}, r.in...)
		for _, c := range choice[in.opcode()] {
			ours.set("", c.off, c.hi, c.lo, 0)
			theirs.set("", c.off, c.hi, c.lo, 0)
		}
		if h := head[in.opcode()]; h != 0 {
			ours, theirs = ours[:h], theirs[:h]
		}
		for i := 0; i+4 <= min(len(ours), len(theirs)); i += 4 {
			check.Equal(t, ours.get(i, 31, 0), theirs.get(i, 31, 0),
				fmt.Sprintf("%v, dword %#x: %%08x", in.opcode(), i))
		}
		check.Equal(t, len(ours), len(theirs), fmt.Sprint(in.opcode())+": %d bytes")
		return append(r.out, make(message, max(0, n-len(r.out)))...)[:n]
	}
	d := f.started()
	for _, stage := range []func() error{d.enable, d.negotiate, d.initialize, d.make.common} {
		must.OK(t, stage())
	}
	for _, op := range []opcode{opEnableHCA, opQueryISSI, opSetISSI, opQueryPages, opManagePages, opAccessReg,
		opQueryHCACap, opSetHCACap, opInitHCA,
		opAllocUAR, opCreateEQ} {
		if compared[op] == 0 {
			t.Errorf("%v was not compared", op)
		}
	}
	t.Log(fmt.Sprint(compared))
	check.Equal(t, d.pages.held(), 6+12868, "firmware was given %d pages, the card wants 6 and 12868")
	if c := d.caps; c.bfHalf != 256 || !c.endPad || c.maxWQE != 1024 || c.inlineMode != inlineL2 &&
		c.inlineMode != inlineVport || c.logMaxCQ != 22 {
		t.Errorf("capabilities of the recorded card: %+v", c)
	}
}
