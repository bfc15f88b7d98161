//go:build ignore

// Which frames a socket gets and which the kernel keeps: those of the kinds, addresses and ports that the responder answers, or that
// a bench waits for. What is wrong with one of them is for package fastpath to find and to count.

#include "../../kit/xdpkit/rules.h"

enum { ARP_REQUEST = 0x0100, ARP_REPLY = 0x0200 }; // as loaded
enum { ECHO_REPLY = 0, ECHO_REQUEST = 8, ECHO_REQUEST6 = 128, ECHO_REPLY6 = 129, SOLICITATION = 135, ADVERTISEMENT = 136 };

// Set before the program is loaded.
struct taken {
	u8 all;         // everything
	u8 any_mac;     // whatever the destination's MAC
	u8 any_address; // whatever the destination's address, for echo requests and datagrams
	u8 requests;    // echo requests
	u8 replies;     // echo replies with the identifiers in echo_ids
	u8 neighbours;  // ARP requests and neighbour solicitations
	u8 neighbour_replies;
	u8 remote; // 4 or 6: what comes from remote_hi and remote_lo alone, or is about it; 0: from anywhere
	u64 remote_hi, remote_lo;
};

const volatile struct taken taken;
const volatile u64 ports[65536 / 64];    // of destination, as they are loaded
const volatile u64 echo_ids[65536 / 64]; // likewise

struct {
	int (*type)[17]; // BPF_MAP_TYPE_XSKMAP
	u32 *key;
	u32 *value;
	int (*max_entries)[1]; // set to the number of queues
} sockets SEC(".maps");

inlined int from4(u32 a) { return !taken.remote || (taken.remote == 4 && a == (u32)taken.remote_lo); }
inlined int from6(u64 hi, u64 lo) { return !taken.remote || (taken.remote == 6 && hi == taken.remote_hi && lo == taken.remote_lo); }

inlined int echo(const u8 *m, u8 request, u8 reply)
{
	return (taken.requests && m[0] == request) || (taken.replies && m[0] == reply && has(echo_ids, get16(m + 4)));
}

inlined int ipv4(const u8 *p, const u8 *end, int to_us)
{
	if (p + 28 > end || !to_us || p[0] != 0x45 || (get16(p + 6) & 0xff3f)) // options; a fragment
		return 0;
	if (!from4(get32(p + 12)) || !(taken.any_address || ours4(get32(p + 16))))
		return 0;
	if (p[9] == 17)
		return has(ports, get16(p + 22));
	return p[9] == 1 && echo(p + 20, ECHO_REQUEST, ECHO_REPLY);
}

// neighbour is about ICMPv6 message m of a solicitation or an advertisement.
inlined int neighbour(const u8 *p, const u8 *end)
{
	const u8 *m = p + 40;
	if (m + 24 > end || p[7] != 255) // RFC 4861 §7.1: it has crossed no router
		return 0;
	u64 hi = get64(m + 8), lo = get64(m + 16);
	if (m[0] == ADVERTISEMENT) // which is about its sender
		return from6(hi, lo);
	return from6(get64(p + 8), get64(p + 16)) && ours6(hi, lo);
}

inlined int ipv6(const u8 *p, const u8 *end, int to_us)
{
	if (p + 48 > end || p[0] >> 4 != 6)
		return 0;
	const u8 *m = p + 40;
	if (p[6] == 58 && us.own6_count && ((taken.neighbours && m[0] == SOLICITATION) || (taken.neighbour_replies && m[0] == ADVERTISEMENT)))
		return neighbour(p, end);
	if (!to_us || !from6(get64(p + 8), get64(p + 16)) || !(taken.any_address || ours6(get64(p + 24), get64(p + 32))))
		return 0;
	if (p[6] == 17)
		return has(ports, get16(m + 2));
	return p[6] == 58 && echo(m, ECHO_REQUEST6, ECHO_REPLY6);
}

inlined int arp(const u8 *a, const u8 *end)
{
	if (a + 28 > end || get32(a) != 0x00080100 || get16(a + 4) != 0x0406) // Ethernet and IPv4, six and four bytes
		return 0;
	u16 op = get16(a + 6);
	if (!(taken.neighbours && op == ARP_REQUEST) && !(taken.neighbour_replies && op == ARP_REPLY))
		return 0;
	return from4(get32(a + 14)) && ours4(get32(a + 24));
}

inlined int wanted(const u8 *f, const u8 *end)
{
	if (f + HEADER > end)
		return 0;
	if (taken.all)
		return 1;
	int to_us = taken.any_mac || is_our_mac(f);
	if (!to_us && !(f[0] & 1))
		return 0;
	const u8 *p = f + HEADER;
	u16 type = get16(f + 12);
	for (int i = 0; i < 2 && is_tag(type); i++, p += 4) {
		if (p + 4 > end)
			return 0;
		type = get16(p + 2);
	}
	switch (type) {
	case 0x0008:
		return ipv4(p, end, to_us);
	case 0xdd86:
		return ipv6(p, end, to_us);
	case 0x0608:
		return arp(p, end);
	}
	return 0;
}

inlined int pick(struct xdp_md *ctx, int tag)
{
	if (!wanted((u8 *)(long)ctx->data, (u8 *)(long)ctx->data_end))
		return XDP_PASS;
	u32 queue = ctx->rx_queue_index;
	u16 proto = 0, tci = 0;
	if (tag && !bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci)) {
		// A frame that the kernel is to get back must not change: see first that its queue has a socket.
		if (!map_lookup_elem(&sockets, &queue) || !push_tag(ctx, proto, tci))
			return XDP_PASS;
	}
	return redirect_map(&sockets, queue, XDP_PASS);
}

SEC("xdp")
int rebound_pick(struct xdp_md *ctx) { return pick(ctx, 0); }

// The same where the interface's driver tells the VLAN tag that it took out of a frame, which is put back.
SEC("xdp")
int rebound_pick_tag(struct xdp_md *ctx) { return pick(ctx, 1); }

const char licence[] SEC("license") = "Apache-2.0";
