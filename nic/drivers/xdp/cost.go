package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// Bench is the program for one configuration in a form that can be measured: the kernel itself runs it repeatedly
// (BPF_PROG_TEST_RUN), and the remaining overhead is measured separately and subtracted. The program would refuse its
// own reply as input, so another program runs before it, which restores the request where the reply differs, and
// continues with a tail call. Close releases its resources.
type Bench struct {
	Bytes   int // of the request
	frame   []byte
	maps    *maps
	program *xdpkit.Program
	empty   *ebpf.Program
	before  [2]*ebpf.Program // continues into program, and into empty
	jumps   [2]*ebpf.Map
}

// NewBench loads the program for c and the request frame, whose reply must have the length of the request. It requires
// root.
func NewBench(c fastpath.Config, frame []byte) (_ *Bench, err error) {
	b := &Bench{Bytes: len(frame), frame: frame}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	o, err := newObject()
	if err != nil {
		return nil, err
	}
	if b.maps, err = o.newMaps(); err != nil {
		return nil, err
	}
	if b.program, err = o.load(c, variant{}, b.maps); err != nil {
		return nil, err
	}
	reply := make([]byte, len(frame)+64)
	run := ebpf.RunOptions{Data: frame, DataOut: reply}
	switch action, err := b.program.Run(&run); {
	case err != nil:
		return nil, err
	case action != actionTX || len(run.DataOut) != len(frame):
		return nil, fmt.Errorf("the request is not answered, or not in its own length: action %d, %d bytes to %d",
			action, len(run.DataOut), len(frame))
	}
	b.empty, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "rebound_empty", Type: ebpf.XDP, AttachType: ebpf.AttachXDP,
		License:      "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, actionTX), asm.Return()}})
	if err != nil {
		return nil, err
	}
	for i, to := range []*ebpf.Program{b.program.Program, b.empty} {
		b.jumps[i], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			return nil, err
		}
		if err := b.jumps[i].Put(uint32(0), uint32(to.FD())); err != nil {
			return nil, err
		}
		b.before[i], err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "rebound_restore", Type: ebpf.XDP,
			AttachType: ebpf.AttachXDP, License: "Apache-2.0",
			Instructions: restore(frame, run.DataOut, b.jumps[i].FD())})
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Actions of linux/bpf.h.
const actionDrop, actionPass, actionTX = 1, 2, 3

// pieces are the parts of a frame, offset and length, as a program loads them: a load that spans two pending stores
// would have to wait for both, which does not happen with a frame that a device wrote.
func pieces(frame []byte) (p [][2]int) {
	at := 0
	take := func(lengths ...int) {
		for _, n := range lengths {
			if at+n <= len(frame) {
				p = append(p, [2]int{at, n})
				at += n
			}
		}
	}
	take(4, 2, 4, 2, 2)
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x86dd:
		take(4, 2, 1, 1, 8, 8, 8, 8)
	case 0x0806:
		take(8, 4, 2, 4, 4, 2, 4)
	}
	for len(frame)-at >= 4 {
		take(4)
	}
	take(2)
	take(1)
	return p
}

// restore is a program that restores frame where reply differs, and continues into the program in jumps.
func restore(frame, reply []byte, jumps int) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(len(frame))),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
	}
	for _, piece := range pieces(frame) {
		at, n := piece[0], piece[1]
		if string(frame[at:at+n]) == string(reply[at:at+n]) {
			continue
		}
		switch n {
		case 8:
			code = append(code, asm.LoadImm(asm.R4, int64(binary.LittleEndian.Uint64(frame[at:])), asm.DWord),
				asm.StoreMem(asm.R2, int16(at), asm.R4, asm.DWord))
		case 4:
			code = append(code, asm.StoreImm(asm.R2, int16(at), int64(int32(binary.LittleEndian.Uint32(frame[at:]))),
				asm.Word))
		case 2:
			code = append(code, asm.StoreImm(asm.R2, int16(at), int64(int16(binary.LittleEndian.Uint16(frame[at:]))),
				asm.Half))
		case 1:
			code = append(code, asm.StoreImm(asm.R2, int16(at), int64(int8(frame[at])), asm.Byte))
		}
	}
	return append(code,
		asm.LoadMapPtr(asm.R2, jumps),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}

// Run returns the duration of one run of the program, as the mean of n, and the subtracted overhead: restoring the
// request, the tail call, and the kernel's loop.
func (b *Bench) Run(n int) (program, around time.Duration, err error) {
	var took [2]time.Duration
	for i, p := range b.before {
		action, d, err := p.Benchmark(b.frame, n, nil)
		if err != nil {
			return 0, 0, err
		}
		if action != actionTX {
			return 0, 0, errors.New("the last request was not answered: the limit of rates is too low for a bench")
		}
		took[i] = d
	}
	return took[0] - took[1], took[1], nil
}

// Close releases the bench's resources.
func (b *Bench) Close() {
	for _, p := range []*ebpf.Program{b.program.Program, b.empty, b.before[0], b.before[1]} {
		if p != nil {
			p.Close()
		}
	}
	for _, m := range b.jumps {
		if m != nil {
			m.Close()
		}
	}
	if b.maps != nil {
		b.maps.close()
	}
}

// Guard is a guard that a configuration can omit.
type Guard struct {
	Name    string
	Without func(*fastpath.Config)
}

// Guards are the guards that a configuration can omit, after an entry with all guards.
func Guards() []Guard {
	return []Guard{
		{"all guards", func(*fastpath.Config) {}},
		{"no checksum of the message", func(c *fastpath.Config) { c.ChecksumBytes = 0 }},
		{"no limit of rates", func(c *fastpath.Config) { c.Rate = 0 }},
		{"no guard against loops", func(c *fastpath.Config) { c.Loop = 0 }},
		{"none of these", func(c *fastpath.Config) { c.ChecksumBytes, c.Rate, c.Loop = 0, 0, 0 }},
		{"none (open)", func(c *fastpath.Config) { c.Mode = fastpath.Open }},
	}
}
