// Package afxdp drives an interface through AF_XDP sockets. An XDP program, pick.c with the rules.h that
// nic/drivers/xdp's has too, attached while this process lives, gives the sockets only the frames that the responder
// answers (or that a bench waits for) and passes all others to the kernel.
//
// Each queue has its own UMEM, in two parts: the lower frames circulate through the fill, receive, transmit and
// completion rings, the upper ones are Send's. No ring has fewer entries than there are frames that can be in it, so
// none can overflow. A received frame is rewritten in place, goes to the transmit ring, and reaches the fill ring
// only when the completion ring has given it back.
//
// Zero copy is used where the kernel's driver has it, the driver's own XDP hook before the generic one; Info says
// which. On veth, Linux 6.18, the generic hook is the quicker one: the p50 of a round trip through it is 0.87 of that
// through the driver's (a loop in C, internal/bench/peers, 13 alternating rounds, 0.86 to 0.88). It is not the
// default because a VLAN tag beside the frame is lost there. No gain, in the same way, at the driver's hook:
// need_wakeup off 0.99 (0.93 to 1.03), 128 chunks 0.98 (0.92 to 1.14), 4096 chunks 1.01, PAUSE between looks 1.00,
// replies through a packet socket 1.04.
//
// In copy mode a reply costs one sendto, in which the kernel copies the frame and hands it to the interface. Busy
// polling (SO_PREFER_BUSY_POLL) makes this core run the driver's receive path instead of interrupts; it is used with
// zero copy where the administrator prepared the interface for it by napi_defer_hard_irqs and gro_flush_timeout. On
// veth it gains nothing: there the sender's core runs the receive path.
//
// A VLAN tag that the interface took out of the frame is invisible to XDP. If the kernel can tell it to the program
// (bpf_xdp_metadata_rx_vlan_tag: veth, ice, mlx5 and others, from Linux 6.8), the program puts it back;
// otherwisewhere a note asks to turn rx-vlan-offload off, since tagged frames would be answered untagged.
//
// Sources: Documentation/networking/af_xdp.rst, xdp-rx-metadata.rst, linux/if_xdp.h. Tested: the package's tests run
// over veth in copy mode, against the kernel's own ICMP, ARP, ND and UDP. Zero copy runs in the lab (proof/lab), on
// Linux's ixgbe and mlx5_core and models of their cards; no other driver's has been run, and none on a card.
package afxdp
