package afxdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/asm"
)

// builder appends instructions and names the next one.
type builder struct {
	code    asm.Instructions
	pending string
	aliases int
}

func (b *builder) add(code ...asm.Instruction) {
	if b.pending != "" {
		code[0] = code[0].WithSymbol(b.pending)
		b.pending = ""
	}
	b.code = append(b.code, code...)
}

// label names the next instruction.
func (b *builder) label(name string) {
	if b.pending != "" { // an instruction has one name: give the first its own
		b.add(asm.Mov.Imm(asm.R5, 0))
	}
	b.pending = name
}

func (b *builder) fresh() string {
	b.aliases++
	return fmt.Sprint("l", b.aliases)
}

func (b *builder) jump(label string) { b.add(asm.Ja.Label(label)) }

// need passes a frame that does not reach n bytes beyond regFrame.
func (b *builder) need(n int32) {
	b.add(
		asm.Mov.Reg(asm.R2, regFrame),
		asm.Add.Imm(asm.R2, n),
		asm.JGT.Reg(asm.R2, regEnd, "pass"),
	)
}

// unless32 jumps if the 32 bits in reg are not v. A jump's operand is sign-extended, so v goes through R5.
func (b *builder) unless32(reg asm.Register, v uint32, label string) {
	b.add(
		asm.LoadImm(asm.R5, int64(v), asm.DWord),
		asm.JNE.Reg(reg, asm.R5, label),
	)
}

// listed passes the packet unless the address of size bytes at off is in list. It keeps R1.
func (b *builder) listed(size int, off int16, list []netip.Addr) {
	ok := b.fresh()
	for i := range size / 4 {
		if i == 0 {
			b.add(asm.LoadMem(asm.R0, regFrame, off, asm.Word))
		} else if i%2 == 0 {
			b.add(asm.LoadMem(asm.R3, regFrame, off+int16(4*i), asm.Word))
		}
		if i%2 == 1 { // two words as the machine would load eight bytes
			b.pair([]asm.Register{asm.R0, asm.R3}[i/2], off+int16(4*i))
		}
	}
	for _, a := range list {
		if a.BitLen() != 8*size {
			continue
		}
		v := a.AsSlice()
		if size == 4 {
			b.add(
				asm.LoadImm(asm.R5, int64(binary.NativeEndian.Uint32(v)), asm.DWord),
				asm.JEq.Reg(asm.R0, asm.R5, ok),
			)
			continue
		}
		next := b.fresh()
		b.add(
			asm.LoadImm(asm.R5, wide(v), asm.DWord),
			asm.JNE.Reg(asm.R0, asm.R5, next),
			asm.LoadImm(asm.R5, wide(v[8:]), asm.DWord),
			asm.JEq.Reg(asm.R3, asm.R5, ok),
		)
		b.label(next)
	}
	b.jump("pass")
	b.label(ok)
}

// pair puts the word at off above the one in reg: packets need not be aligned to eight bytes.
func (b *builder) pair(reg asm.Register, off int16) {
	b.add(
		asm.LoadMem(asm.R4, regFrame, off, asm.Word),
		asm.LSh.Imm(asm.R4, 32),
		asm.Or.Reg(reg, asm.R4),
	)
}

// wide is the value that pair makes of eight bytes.
func wide(v []byte) int64 {
	return int64(uint64(binary.NativeEndian.Uint32(v[4:]))<<32 | uint64(binary.NativeEndian.Uint32(v)))
}

// take redirects the frame to the socket of its queue, or passes it where the queue has none.
func (b *builder) take(sockets int, vlanTag int64) {
	const tpid, tci, queue = -8, -16, -24 // on the stack
	b.label("take")
	if vlanTag != 0 {
		b.add(
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.R10, tpid, asm.R1, asm.DWord),
			asm.StoreMem(asm.R10, tci, asm.R1, asm.DWord),
			asm.Mov.Reg(asm.R1, regContext),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, tpid),
			asm.Mov.Reg(asm.R3, asm.R10),
			asm.Add.Imm(asm.R3, tci),
			asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: vlanTag},
			asm.JNE.Imm(asm.R0, 0, "redirect"), // no tag
			// A frame that the kernel is to get back must not change: see first that its queue has a socket.
			asm.LoadMem(asm.R1, regContext, mdQueue, asm.Word),
			asm.StoreMem(asm.R10, queue, asm.R1, asm.Word),
			asm.LoadMapPtr(asm.R1, sockets),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, queue),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.Mov.Reg(asm.R1, regContext),
			asm.Mov.Imm(asm.R2, -4),
			asm.FnXdpAdjustHead.Call(),
			asm.JNE.Imm(asm.R0, 0, "pass"), // no room in front
			asm.LoadMem(regFrame, regContext, mdData, asm.Word),
			asm.LoadMem(regEnd, regContext, mdDataEnd, asm.Word),
		)
		b.need(18)
		for off := int16(0); off < 12; off += 4 {
			b.add(
				asm.LoadMem(asm.R1, regFrame, off+4, asm.Word),
				asm.StoreMem(regFrame, off, asm.R1, asm.Word),
			)
		}
		b.add(
			asm.LoadMem(asm.R1, asm.R10, tpid, asm.Half),
			asm.StoreMem(regFrame, 12, asm.R1, asm.Half),
			asm.LoadMem(asm.R1, asm.R10, tci, asm.Half),
			asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.StoreMem(regFrame, 14, asm.R1, asm.Half),
		)
		b.label("redirect")
	}
	b.add(
		asm.LoadMapPtr(asm.R1, sockets),
		asm.LoadMem(asm.R2, regContext, mdQueue, asm.Word),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
}
