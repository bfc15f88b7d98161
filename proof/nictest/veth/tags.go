package veth

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// HiddenTag is the tag that HideTags stores in the metadata of each frame, in the format that it has in a frame.
var HiddenTag = [4]byte{0x81, 0x00, 0x60, 0x07}

// HideTags makes Peer store HiddenTag in the metadata of each IPv4 frame that it sends, as a card with rx-vlan-offload
// does, until the test ends.
func (v *Pair) HideTags(t testing.TB) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // __sk_buff.protocol
			asm.Mov.Imm(asm.R0, 0),
			asm.JNE.Imm(asm.R2, 0x0008, "out"), // ARP is unchanged
			asm.Mov.Imm(asm.R2, 0x0081),
			asm.Mov.Imm(asm.R3, 0x6007),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return().WithSymbol("out"),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var tcx link.Link
	v.Peer.Do(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName(v.Peer.Name); err == nil {
			tcx, err = link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: p,
				Attach: ebpf.AttachTCXEgress})
		}
	})
	if err != nil {
		t.Skip("no tcx in this kernel: ", err)
	}
	t.Cleanup(func() { tcx.Close() })
}
