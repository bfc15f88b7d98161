// Package xdp answers in the kernel: an XDP program with the rules of package fastpath, attached to an interface, sends the
// replies from where the interface's driver receives. No core polls, and nothing runs when nobody asks.
//
// The program is responder.c. bpf2go makes the object and the Go types from it, which are committed: building takes no clang.
// It needs Linux 5.18 or later, root (CAP_BPF and CAP_NET_ADMIN), and an MTU whose frames fit one buffer.
//
// What is not ours goes on to the kernel's stack as it came. What is ours and was refused by a guard is dropped, and counted
// under fastpath's names. The limit of rates is kept for each CPU. A tag that the interface takes out of the frame
// (rx-vlan-offload) is not seen: such a frame counts as untagged, and is answered untagged.
//
// The times in a STAMP reply are those at which the program began and at which it wrote them, by the monotonic clock, which
// is related to the time of day every second; the frame leaves when the driver rings its doorbell, which may be after others.
//
// Proven: every frame of package corpus and ten million mutated ones get the same bytes and the same verdict as from fastpath,
// by BPF_PROG_TEST_RUN; traffic over veth.
package xdp

//go:generate go tool bpf2go -go-package xdp -target bpfel -cflags "-O2 -Wall -Werror -mcpu=v3" program responder.c
