// ARP and neighbour discovery, as fastpath/neighbour.go has them.

// options checks a solicitation's options from offset at to end, and returns where the last sender's link-layer address is, 0
// if there is none, or -1 if they are not valid. With write it turns them into the target's. Like sum, it is verified once.
global int options(struct xdp_md *ctx, u32 at, u32 end, int write)
{
	u8 *f = (u8 *)(long)ctx->data, *last = (u8 *)(long)ctx->data_end;
	u32 found = 0;
	if (end > MAX_SOLICITATION)
		return -1;
	for (u32 i = 0; i < MAX_SOLICITATION / 8 && at < end; i++) {
		if (at + 8 > end)
			return -1;
		keep(at); // the verifier of Linux 6.1 does not conclude this from the comparisons before, and clang does
		if (at > MAX_SOLICITATION)
			return -1;
		u8 *o = f + at;
		if (o + 8 > last)
			return -1;
		u32 n = 8 * o[1];
		if (n == 0 || at + n > end)
			return -1;
		if (o[0] == 1) {
			if (o[1] != 1)
				return -1;
			found = at + 2;
			if (write) {
				o[0] = 2;
				put_our_mac(o + 2);
			}
		}
		at += n;
	}
	return found;
}

enum { DAD = 1, ND = 2 };

inlined int solicitation(struct request *q, u32 *what)
{
	*what = ND;
	u32 l3 = q->l3;
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *p = f + l3;
	int v;
	if (p + 41 > end)
		return SHORT;
	if (!is_our_mac(f) && (get16(f) != 0x3333 || f[2] != 0xff || f[3] != p[37] || f[4] != p[38] || f[5] != p[39] || p[24] != 0xff))
		return MAC;
	if ((v = source_mac(f + 6)))
		return v;
	u32 n = 40 + be16(p + 4);
	if (p[0] >> 4 != 6)
		return VERSION;
	if (!fits(q, n))
		return LENGTH;
	u8 *m = p + 40;
	if (n < 64 || m + 24 > end || p[7] != 255 || m[1] != 0)
		return ND_INVALID;
	u64 thi = get64(m + 8), tlo = get64(m + 16), dhi = get64(p + 24), dlo = get64(p + 32), shi = get64(p + 8), slo = get64(p + 16);
	// ff02::1:ffXX:XXXX, the last three bytes those of the target
	int solicited = dhi == 0x2ffULL && (dlo & 0xffffffffffULL) == 0xff01000000ULL && dlo >> 40 == tlo >> 40;
	if (!ours6(thi, tlo))
		return ADDRESS;
	if (!solicited && (dhi != thi || dlo != tlo))
		return ADDRESS;
	int dad = shi == 0 && slo == 0;
	if (!dad && (v = source6(shi, slo)))
		return v;
	if (fold(0x3a00 + swap16(n - 40) + sum(q->ctx, l3 + 8, n - 8)) != 0xffff)
		return ND_INVALID;
	int lla = options(q->ctx, l3 + 64, l3 + n, 0);
	if (lla < 0 || (dad && (lla || !solicited)) || (!dad && solicited && !lla))
		return ND_INVALID;
	u32 to = get32(f + 6);
	u16 to2 = get16(f + 10);
	if (lla) {
		u8 *a = f + (lla & (MAX_SOLICITATION - 1));
		if (a + 6 > end)
			return ND_INVALID;
		if ((v = source_mac(a)))
			return v;
		to = get32(a);
		to2 = get16(a + 4);
		options(q->ctx, l3 + 64, l3 + n, 1);
	}
	put32(m, 136);
	put32(m + 4, dad ? 0x20 : 0x60);
	*(u64 *)(p + 24) = shi;
	*(u64 *)(p + 32) = slo;
	*(u64 *)(p + 8) = thi;
	*(u64 *)(p + 16) = tlo;
	if (dad) {
		*(u64 *)(p + 24) = 0x2ff;
		*(u64 *)(p + 32) = 1ULL << 56;
		put16(p + 4, swap16(32));
		to = 0x3333;
		to2 = 1 << 8;
	}
	put32(f, to);
	put16(f + 4, to2);
	put_our_mac(f + 6);
	*what |= dad;
	return ANSWERED_ND;
}

// advertisement gives the answer to duplicate address detection its length and its option, and every answer its checksum.
inlined int advertisement(struct request *q, u32 dad)
{
	struct xdp_md *ctx = q->ctx;
	u32 l3 = q->l3;
	if (l3 > 22)
		return 0;
	if (dad) {
		if (xdp_adjust_tail(ctx, (int)(l3 + 72) - (int)size(ctx)))
			return 0;
		q->length = l3 + 72;
	}
	u8 *f = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end, *p = f + l3;
	if (p + 64 > end)
		return 0;
	if (dad) {
		if (p + 72 > end)
			return 0;
		put16(p + 64, 0x102);
		put_our_mac(p + 66);
	}
	u32 n = be16(p + 4);
	put16(p + 42, ~fold(0x3a00 + swap16(n) + sum(ctx, l3 + 8, 32 + n)));
	return 1;
}

inlined int arp(struct request *q)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *a = f + q->l3;
	int v;
	if (a + 28 > end)
		return SHORT;
	if (!is_our_mac(f) && !is_broadcast(f))
		return MAC;
	if ((v = source_mac(f + 6)))
		return v;
	if (get64(a) != 0x0100040600080100ULL)
		return ARP_OTHER;
	if (!fits(q, 28))
		return LENGTH;
	u32 spa = get32(a + 14), tpa = get32(a + 24), sha = get32(a + 8);
	u16 sha2 = get16(a + 12);
	if (spa == tpa)
		return ARP_ANNOUNCEMENT;
	if (!ours4(tpa))
		return ADDRESS;
	if (spa && (v = source4(spa)))
		return v;
	if ((v = source_mac(a + 8)))
		return v;
	a[7] = 2;
	put_our_mac(a + 8);
	put32(a + 14, tpa);
	put32(a + 18, sha);
	put16(a + 22, sha2);
	put32(a + 24, spa);
	put32(f, sha);
	put16(f + 4, sha2);
	put_our_mac(f + 6);
	return ANSWERED_ARP;
}
