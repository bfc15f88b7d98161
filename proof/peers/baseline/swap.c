//go:build ignore

// The least XDP program that answers: it swaps the addresses of echo requests, fixes the checksum, answers ARP, and checks nothing.

#include "../../../nic/kit/xdpkit/rules.h"

SEC("xdp")
int floor_swap(struct xdp_md *ctx)
{
	u8 *f = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	if (f + 42 > end)
		return XDP_PASS;
	u32 a = get32(f), b = get32(f + 6);
	u16 a2 = get16(f + 4), b2 = get16(f + 10), type = get16(f + 12);
	if (type == 0x0608 && get16(f + 20) == 0x0100) {
		u32 sender = get32(f + 28), target = get32(f + 38);
		put16(f + 20, 0x0200);
		put32(f + 32, get32(f + 22));
		put16(f + 36, get16(f + 26));
		put32(f + 38, sender);
		put32(f + 28, target);
		put_our_mac(f + 22);
		a = get32(f + 22);
		a2 = get16(f + 26);
	} else if (type == 0x0008 && f[23] == 1 && f[34] == 8) {
		u32 src = get32(f + 26), dst = get32(f + 30), sum = get16(f + 36) + 8; // RFC 1624
		put32(f + 26, dst);
		put32(f + 30, src);
		f[34] = 0;
		put16(f + 36, sum + (sum >> 16));
	} else {
		return XDP_PASS;
	}
	put32(f, b);
	put16(f + 4, b2);
	put32(f + 6, a);
	put16(f + 10, a2);
	return XDP_TX;
}

const char licence[] SEC("license") = "Apache-2.0";
