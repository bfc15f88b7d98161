//go:build ignore

// The rules of package fastpath as an XDP program: it answers in the driver's receive path what Slow answers, for the same
// reasons, and with the same bytes. Order and names follow fastpath/slow.go and neighbour.go; the differential test holds the
// two together.

#include "../../kit/xdpkit/rules.h"
#include "state.h"
#include "frame.h"
#include "limit.h"
#include "stamp.h"
#include "neighbour.h"

// udp answers the datagram of n bytes at offset at. hosts is where the pseudo-header's addresses start and header the length of
// the packet's header, hash that of the source.
inlined int udp(struct request *q, u32 at, u32 n, u32 hosts, u32 header, u64 hash, u8 hops)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *d = f + at;
	if (n < 8 || d + 8 > end || be16(d + 4) != n)
		return LENGTH;
	u16 from = get16(d), to = get16(d + 2), ck = get16(d + 6);
	int v6 = header == 40, stamp = rules.stamp && has(stamp_ports, to);
	if (!stamp && !has(echo_ports, to))
		return PORT;
	if (has(service_ports, from))
		return SERVICE_PORT;
	if (!rules.open && hops < 2)
		return HOP_LIMIT;
	if (v6 && ck == 0)
		return NO_CHECKSUM;
	if (stamp && n < 8 + (rules.stamp_base ? STAMP_SENDER : STAMP_LENGTH))
		return STAMP_SHORT;
	u64 pseudo = 0x1100 + swap16(n);
	int partial = 0;
	if (rules.partial) {
		pseudo += sum(q->ctx, hosts, at - hosts);
		partial = ck == fold(pseudo);
		if (ck && !partial && header + n <= rules.checksum_bytes && fold(pseudo + sum(q->ctx, at, n)) != 0xffff)
			return CHECKSUM;
	} else if (ck && header + n <= rules.checksum_bytes && fold(pseudo + sum(q->ctx, hosts, at - hosts + n)) != 0xffff) {
		return CHECKSUM;
	}
	if (!stamp && rules.loop && loops(q, hash, get32(d + 4)))
		return LOOP;
	if (!take(q, hash))
		return RATE;
	if (partial) {
		ck = ~fold(sum(q->ctx, at, n));
		put16(d + 6, ck ? ck : 0xffff);
	}
	if (stamp && n < 8 + STAMP_LENGTH) {
		q->grows = n;
		q->at = at;
		q->hops = hops;
	} else if (stamp && !reflect(q, d, end, hops, 0)) {
		return STAMP_SHORT;
	}
	u32 ports = get32(d);
	put32(d, ports << 16 | ports >> 16);
	if (stamp)
		return v6 ? ANSWERED_STAMPV6 : ANSWERED_STAMPV4;
	return v6 ? ANSWERED_UDPV6 : ANSWERED_UDPV4;
}

inlined int icmp4(const struct request *q, u32 at, u32 n, u64 hash)
{
	u8 *m = (u8 *)(long)q->ctx->data + at, *end = (u8 *)(long)q->ctx->data_end;
	if (n < 8 || m + 8 > end)
		return LENGTH;
	if (get16(m) != 8)
		return ICMP_TYPE;
	if (20 + n <= rules.checksum_bytes && fold(sum(q->ctx, at, n)) != 0xffff)
		return CHECKSUM;
	if (!take(q, hash))
		return RATE;
	u16 hc = update(get16(m + 2), 8, 0);
	if (hc == 0 && sum(q->ctx, at + 4, n - 4) == 0)
		hc = 0xffff;
	m[0] = 0;
	put16(m + 2, hc);
	return ANSWERED_ICMPV4;
}

inlined int icmp6(const struct request *q, u32 at, u32 n, u64 hash)
{
	u8 *m = (u8 *)(long)q->ctx->data + at, *end = (u8 *)(long)q->ctx->data_end;
	if (n < 8 || m + 8 > end)
		return LENGTH;
	if (get16(m) != 128)
		return ICMP_TYPE;
	if (40 + n <= rules.checksum_bytes && fold(0x3a00 + swap16(n) + sum(q->ctx, at - 32, 32 + n)) != 0xffff)
		return CHECKSUM;
	if (!take(q, hash))
		return RATE;
	m[0] = 129;
	put16(m + 2, update(get16(m + 2), 128, 129));
	return ANSWERED_ICMPV6;
}

inlined int ipv4(struct request *q)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *p = f + q->l3;
	int v;
	if (p + 20 > end)
		return SHORT;
	if (!rules.open && (v = macs(f)))
		return v;
	u32 n = be16(p + 2);
	if (p[0] >> 4 != 4)
		return VERSION;
	if (p[0] != 0x45)
		return OPTIONS;
	if (get16(p + 6) & 0xffbf) // all but Don't Fragment
		return FRAGMENT;
	if (n < 20 || !fits(q, n))
		return LENGTH;
	u32 src = get32(p + 12), dst = get32(p + 16);
	if (!rules.open) {
		u64 s = (u64)get32(p) + get32(p + 4) + get32(p + 8) + src + dst;
		if (fold(s) != 0xffff)
			return HEADER_CHECKSUM;
		if (!ours4(dst))
			return ADDRESS;
		if ((v = source4(src)))
			return v;
	}
	u8 hops = HOPS;
	if (p[9] == 1) {
		v = icmp4(q, q->l3 + 20, n - 20, hash4(src));
	} else if (p[9] == 17) {
		v = udp(q, q->l3 + 20, n - 20, q->l3 + 12, 20, hash4(src), p[8]);
		hops = p[8] - 1 < HOPS ? p[8] - 1 : HOPS;
	} else {
		return PROTOCOL;
	}
	if (!ANSWERED(v))
		return v;
	if (!rules.open) {
		u16 w = get16(p + 8);
		p[8] = hops;
		put16(p + 10, update(get16(p + 10), w, get16(p + 8)));
	}
	swap_macs(f);
	put32(p + 12, dst);
	put32(p + 16, src);
	return v;
}

inlined int ipv6(struct request *q, u32 *what)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *p = f + q->l3;
	int v;
	if (p + 40 > end)
		return SHORT;
	if (p[6] == 58 && p + 41 <= end && p[40] == 135)
		return solicitation(q, what);
	if (!rules.open && (v = macs(f)))
		return v;
	u32 n = 40 + be16(p + 4);
	if (p[0] >> 4 != 6)
		return VERSION;
	if (!fits(q, n))
		return LENGTH;
	u64 shi = get64(p + 8), slo = get64(p + 16), dhi = get64(p + 24), dlo = get64(p + 32);
	if (!rules.open) {
		if (!ours6(dhi, dlo))
			return ADDRESS;
		if ((v = source6(shi, slo)))
			return v;
	}
	u8 hops = HOPS;
	switch (p[6]) {
	case 58:
		v = icmp6(q, q->l3 + 40, n - 40, hash6(shi, slo));
		break;
	case 17:
		v = udp(q, q->l3 + 40, n - 40, q->l3 + 8, 40, hash6(shi, slo), p[7]);
		hops = p[7] - 1 < HOPS ? p[7] - 1 : HOPS;
		break;
	case 44:
		return FRAGMENT;
	case 0: case 43: case 50: case 51: case 60: case 135: case 139: case 140:
		return EXTENSION;
	default:
		return PROTOCOL;
	}
	if (!ANSWERED(v))
		return v;
	if (!rules.open)
		p[7] = hops;
	swap_macs(f);
	*(u64 *)(p + 8) = dhi;
	*(u64 *)(p + 16) = dlo;
	*(u64 *)(p + 24) = shi;
	*(u64 *)(p + 32) = slo;
	return v;
}

// run answers a frame. tag and stamps: the interface's driver can be asked for the tag that it took out, and for its time stamp.
inlined int run(struct xdp_md *ctx, int tag, int stamps)
{
	u32 cpu = get_smp_processor_id();
	int v = SHORT, others = 0, pass = 1, hidden = 0;
	u32 what = 0;
	u16 hidden_proto = 0, hidden_tci = 0;
	u64 device = 0;
	if (stamps && unlikely(bpf_xdp_metadata_rx_timestamp(ctx, &device)))
		device = 0;
	if (tag && !bpf_xdp_metadata_rx_vlan_tag(ctx, &hidden_proto, &hidden_tci)) {
		hidden = 1;
		others = !has(vlans, hidden_tci & 0xfff);
	}
	u8 *f = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	struct request q = {.ctx = ctx, .device = device, .length = size(ctx), .l3 = HEADER};
	q.cpu = map_lookup_elem(&cpus, &cpu);
	if (!q.cpu)
		return XDP_PASS;
	q.cpu->rx_bytes += q.length;
	// Two looks at the clock cost more than all the rest: a random frame in sixteen is timed, and each that may be a test packet.
	q.cpu->dice = q.cpu->dice * 6364136223846793005ULL + 1442695040888963407ULL;
	int timed = q.cpu->dice >> 60 == 0;
	if (unlikely(timed) || rules.stamp) {
		q.start = ktime_get_ns();
		if (!rules.stepped)
			q.cpu->now = q.start;
	}
	if (f + HEADER > end)
		goto done;
	u16 type = get16(f + 12);
	if (unlikely(is_tag(type))) {
		for (int i = hidden; i < 2 && is_tag(type); i++) {
			u8 *t = f + q.l3;
			if (t + 4 > end)
				goto done;
			others |= !has(vlans, be16(t) & 0xfff);
			type = get16(t + 2);
			q.l3 += 4;
		}
	} else if (!hidden) {
		others = !has(vlans, 0);
	}
	if (unlikely(others)) {
		v = VLAN;
	} else if (type == 0x0008) {
		v = ipv4(&q);
		pass = 0;
		if (unlikely(q.grows) && !grow(&q, 0))
			v = STAMP_SHORT;
	} else if (type == 0xdd86) {
		v = ipv6(&q, &what);
		pass = what & ND;
		if (v == ANSWERED_ND && !advertisement(&q, what & DAD))
			v = ND_INVALID;
		if (unlikely(q.grows) && !grow(&q, 1))
			v = STAMP_SHORT;
	} else if (type == 0x0608) {
		v = arp(&q);
	} else {
		v = ETHERTYPE;
	}
done:
	keep(v); // clang knows v's range and would leave out the mask; the verifier of Linux 5.15 loses the range
	v &= 63;
	q.cpu->verdicts[v]++;
	if (!ANSWERED(v))
		return pass || !(GUARDED >> v & 1) ? XDP_PASS : XDP_DROP;
	u32 length = size(ctx);
	if (unlikely(length > q.length) && xdp_adjust_tail(ctx, (int)q.length - (int)length))
		return XDP_DROP;
	q.cpu->tx_bytes += q.length;
	if (hidden && !push_tag(ctx, hidden_proto, hidden_tci))
		return XDP_DROP;
	if (likely(!timed))
		return XDP_TX;
	u64 took = ktime_get_ns() - q.start;
	record(&q.cpu->turnaround, took);
	if (stamps && q.device) {
		struct clock *c = clock_in_force();
		u64 at = c ? received(&q, c) : 0, began = ktime_get_tai_ns() - took;
		if (at && at < began)
			record(&q.cpu->delivery, began - at);
	}
	return XDP_TX;
}

SEC("xdp")
int rebound(struct xdp_md *ctx) { return run(ctx, 0, 0); }

// The same where the interface's driver tells the tag or the time. It is a separate program, because what it keeps of both costs each reply two
// nanoseconds. Only a program that is bound to the interface may ask, at the driver's own hook.
SEC("xdp")
int rebound_bound(struct xdp_md *ctx) { return run(ctx, rules.tag, rules.stamps); }

const char licence[] SEC("license") = "Apache-2.0";
