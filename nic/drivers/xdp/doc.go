// Package xdp answers in the kernel: an XDP program with the rules of package fastpath, attached to an interface, sends
// replies directly from the interface's receive path. No core polls, and nothing runs when idle.
//
// The program is responder.c, with rules.h of nic/kit/xdpkit. bpf2go generates the object and the Go types from it,
// which are committed: building needs no clang. It needs Linux 5.10 or later with its types (CONFIG_DEBUG_INFO_BTF),
// 6.1 for STAMP, and root (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON).
//
// Frames that are not for the responder continue unchanged to the kernel's stack. Frames for the responder that a guard
// refuses are dropped, and counted under fastpath's names. The rate limit is fastpath's, with places for known sources,
// kept for each CPU (100 KiB). It uses the CPU's last clock reading, and reads the clock again before it refuses: a
// source that paused may get some dozens of replies beyond its burst, those between two readings.
//
// A frame in several buffers (jumbo frames on veth and on cards) is answered by a program that declares support for
// them; headers are always in the first buffer. A VLAN tag that the interface stripped counts if its driver passes it
// to programs (bpf_xdp_metadata_rx_vlan_tag: veth, ice, mlx5 and others, from Linux 6.8), and the reply gets it back;
// otherwise the frame counts as untagged, and a note says so. A card's VLAN filter (rx-vlan-filter) drops frames of
// VLANs that the host has no interface for, before any program sees them. On veth, native mode is used only if the
// other end has a native program: otherwise the kernel drops the frames that this end sends there.
//
// The clock is read twice for one frame in sixteen, chosen at random, because two readings cost more than the reply:
// turnaround is measured for those. In a STAMP reply T2, when the test packet was received, is the card's time if the
// driver provides it (bpf_xdp_metadata_rx_timestamp, and a clock /dev/ptpN to convert it), otherwise the program's
// start; T3 is when the program wrote it, before the driver rings its doorbell, which may be after other frames. Both
// are the kernel's TAI minus its offset from UTC, read for each packet; offset, error estimate and the card's clock are
// passed to the program every second, and the last values stay active if a pin outlives its process (the card's clock
// for two seconds). For T2, timestamps of all frames are enabled on the card; after SIGKILL they remain enabled.
//
// A pin (Options.Pin) keeps program and counts in the BPF file system, under the names that About lists: a new process
// joins it, and replaces the program between two frames.
//
// Tested: every frame of package corpus and ten million mutated ones get the same bytes and the same verdict as from
// fastpath, by BPF_PROG_TEST_RUN; traffic over veth. Hardware timestamps of a real card have not been tested.
package xdp

//go:generate go tool bpf2go -go-package xdp -target bpfel -cflags "-O2 -Wall -Werror -mcpu=v3" program responder.c
