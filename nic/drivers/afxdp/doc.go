// Package afxdp drives an interface through AF_XDP sockets. An XDP program (pick.c, with rules.h, which nic/drivers/xdp
// uses too) is attached while this process lives. It passes only the frames that the responder answers (or that a bench
// waits for) to the sockets, and all others to the kernel.
//
// Each queue has its own UMEM, in two parts: the lower frames circulate through the fill, receive, transmit and
// completion rings, the upper ones are Send's. Each ring has at least as many entries as there are frames that can be
// in it, so none can overflow. A received frame is rewritten in place, goes to the transmit ring, and to the fill ring
// only after the completion ring has returned it.
//
// Zero copy is used if the kernel's driver supports it, and the driver's own XDP hook in preference to the generic one;
// Info reports both. On veth, Linux 6.18, the generic hook is faster: the p50 of a round trip through it is 0.87 of
// that through the driver's (a loop in C, proof/peers, 13 alternating rounds, 0.86 to 0.88). It is not the default,
// because it loses a VLAN tag outside of the frame. No gain, measured in the same way at the driver's hook: need_wakeup
// off 0.99 (0.93 to 1.03), 128 chunks 0.98 (0.92 to 1.14), 4096 chunks 1.01, PAUSE between polls 1.00, replies through
// a packet socket 1.04.
//
// In copy mode a reply costs one sendto, in which the kernel copies the frame and passes it to the interface. Busy
// polling (SO_PREFER_BUSY_POLL) makes this core run the driver's receive path instead of interrupts. It is used with
// zero copy if the administrator prepared the interface for it with napi_defer_hard_irqs and gro_flush_timeout. On veth
// it gains nothing: there the sender's core runs the receive path.
//
// A VLAN tag that the interface removed from the frame is invisible to XDP. If the kernel can pass it to the program
// (bpf_xdp_metadata_rx_vlan_tag: veth, ice, mlx5 and others, from Linux 6.8), the program puts it back. Otherwise a
// note asks to turn rx-vlan-offload off, because tagged frames would be answered untagged.
//
// Sources: Documentation/networking/af_xdp.rst, xdp-rx-metadata.rst, linux/if_xdp.h. Tested: the package's tests run
// over veth in copy mode, against the kernel's own ICMP, ARP, ND and UDP. Zero copy runs in the lab (proof/lab), on
// Linux's ixgbe and mlx5_core with models of their cards; no other driver has been tested, and none on a card.
package afxdp
