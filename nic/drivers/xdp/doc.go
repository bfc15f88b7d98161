// Package xdp answers in the kernel: an XDP program with the rules of package fastpath, attached to an interface,
// sends the replies from where the interface's driver receives. No core polls, and nothing runs when nobody asks.
//
// The program is responder.c, with rules.h of nic/kit/xdpkit. bpf2go makes the object and the Go types from it, which
// are committed: building takes no clang. It needs Linux 5.10 or later, 6.1 for STAMP, and root
// (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON).
//
// What is not ours goes on to the kernel's stack as it came. What is ours and was refused by a guard is dropped, and
// counted under fastpath's names. The limit of rates is fastpath's, with places for known sources, kept for each CPU
// (100 KiB). It goes by the CPU's last look at the clock, and by another one before it refuses: a source that paused
// may have some dozens of replies beyond its burst, those between two looks.
//
// A frame that arrives in several buffers (jumbo frames on veth and on cards) is answered by a program that declares
// to know of them; headers are in the first buffer everywhere. A VLAN tag that the interface took out of a frame
// counts where its driver tells it to programs (bpf_xdp_metadata_rx_vlan_tag: veth, ice, mlx5 and others, from Linux
// 6.8), and the reply gets it back; otherwisewhere the frame counts as untagged, and a note says so. A card's VLAN
// filter (rx-vlan-filter) keeps back frames of VLANs that the host has no interface for, before any program sees
// them. On veth the driver's own hook is taken only if the other end has a program at its own: else the kernel drops
// what this end sends there.
//
// The clock is looked at twice for one frame in sixteen, chosen at random, since two looks cost more than the answer:
// turnaround is of those. In a STAMP reply T2, when the test packet was received, is the card's time where the driver
// gives it (bpf_xdp_metadata_rx_timestamp, and a clock /dev/ptpN to relate it by), otherwise the program's start; T3
// is when the program wrote it, before the driver rings its doorbell, which may be after other frames. Both are the
// kernel's TAI less its offset from UTC, read for each packet; offset, error estimate and the card's clock are passed
// to the program every second, and the last values stay in force if a pin outlives its process (the card's clock for
// two seconds). For T2 a card is made to stamp all frames; after SIGKILL it continues with that.
//
// A pin (Options.Pin) holds program and counts in the BPF file system, under the names that About lists: a process
// that comes joins it, and replaces the program between two frames.
//
// Tested: every frame of package corpus and ten million mutated ones get the same bytes and the same verdict as from
// fastpath, by BPF_PROG_TEST_RUN; traffic over veth. No card's times have been seen.
package xdp

//go:generate go tool bpf2go -go-package xdp -target bpfel -cflags "-O2 -Wall -Werror -mcpu=v3" program responder.c
