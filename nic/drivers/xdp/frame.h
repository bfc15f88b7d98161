// What several kinds of request need: checksums, addresses, lengths.

inlined u16 fold(u64 s)
{
	s = (s >> 32) + (s & 0xffffffff);
	s = (s >> 32) + (s & 0xffffffff);
	s = (s >> 16) + (s & 0xffff);
	s = (s >> 16) + (s & 0xffff);
	return (s >> 16) + (s & 0xffff);
}

// RFC 1624 eqn. 3
inlined u16 update(u16 hc, u16 m, u16 m2)
{
	u32 s = (u16)~hc + (u32)(u16)~m + m2;
	s = (s >> 16) + (s & 0xffff);
	s = (s >> 16) + (s & 0xffff);
	return ~s;
}

inlined u64 sum_words(const u64 b[16])
{
	u64 s = 0;
	for (u32 i = 0; i < 16; i++)
		s += (b[i] >> 32) + (b[i] & 0xffffffff);
	return s;
}

// sum_copied is sum where the bytes need not lie in the first buffer. The verifier walks every round of a loop: with lengths of its
// own in each, it has too many ways to walk.
inlined u64 sum_copied(struct xdp_md *ctx, u32 from, u32 length)
{
	u64 s = 0, b[16];
	for (u32 i = 0; i < MAX_FRAME / sizeof b && length >= sizeof b; i++, from += sizeof b, length -= sizeof b) {
		if (xdp_load_bytes(ctx, from, b, sizeof b))
			return 0;
		s += sum_words(b);
	}
	if (length == 0)
		return s;
	for (u32 i = 0; i < 16; i++)
		b[i] = 0;
	length--;
	keep(length); // the verifier of Linux 6.1 finds neither bound in a comparison
	length = length % sizeof b + 1;
	if (xdp_load_bytes(ctx, from, b, length))
		return 0;
	return s + sum_words(b);
}

// sum adds the words of length bytes at offset from of the frame, not yet folded to 16 bits. It is a global function, and so verified
// once and not for each call. Where the loop ended is not taken from it: the verifier would walk the rest again for each number of
// rounds, 32 ways each time.
global u64 sum(struct xdp_md *ctx, u32 from, u32 length)
{
	const u8 *start = (const u8 *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *p = start;
	u64 s = 0;
	if (from > MAX_FRAME || length > MAX_FRAME)
		return 0;
	if (rules.frags && from + length > (u32)(end - start))
		return sum_copied(ctx, from, length);
	keep(from); // the verifier loses the bound
	from %= LONGEST;
	p += from;
	for (u32 i = 0, left = length; i < MAX_FRAME / 32 && left >= 32; i++, left -= 32, p += 32) {
		keep(p); // clang would count the rounds by arithmetic on end, which the verifier forbids
		if (p + 32 > end)
			return 0;
		s += (u64)get32(p) + get32(p + 4) + get32(p + 8) + get32(p + 12) + get32(p + 16) + get32(p + 20) + get32(p + 24) + get32(p + 28);
	}
	keep(from); // clang would use p, whose place tells the number of rounds
	p = start + from + (length & (LONGEST - 32));
	if (length & 16) {
		if (p + 16 > end)
			return 0;
		s += (u64)get32(p) + get32(p + 4) + get32(p + 8) + get32(p + 12);
		p += 16;
	}
	if (length & 8) {
		if (p + 8 > end)
			return 0;
		s += (u64)get32(p) + get32(p + 4);
		p += 8;
	}
	if (length & 4) {
		if (p + 4 > end)
			return 0;
		s += get32(p);
		p += 4;
	}
	if (length & 2) {
		if (p + 2 > end)
			return 0;
		s += get16(p);
		p += 2;
	}
	if (length & 1) {
		if (p + 1 > end)
			return 0;
		s += *p;
	}
	return s;
}

// The sources return 0 or the verdict that refuses them.
inlined int source4(u32 a)
{
	u8 first = a;
	if (ours4(a))
		return OWN_SOURCE;
	if (first == 0 || first == 127 || first >= 224)
		return SOURCE;
	for (u32 i = 0; i < 3 * MAX_ADDRESSES && i < rules.not4_count; i++)
		if (not4[i] == a)
			return SOURCE;
	return 0;
}

inlined int source6(u64 hi, u64 lo)
{
	if (ours6(hi, lo))
		return OWN_SOURCE;
	if ((u8)hi == 0xff || hi == 0)
		return SOURCE;
	return 0;
}

inlined int source_mac(const u8 *m)
{
	if (m[0] & 1)
		return SOURCE_MAC;
	if (is_our_mac(m))
		return OWN_SOURCE;
	return 0;
}

inlined int macs(const u8 *f)
{
	if (!is_our_mac(f))
		return MAC;
	return source_mac(f + 6);
}

inlined void swap_macs(u8 *f)
{
	u32 d = get32(f), s = get32(f + 6);
	u16 d2 = get16(f + 4), s2 = get16(f + 10);
	put32(f, s);
	put16(f + 4, s2);
	put32(f + 6, d);
	put16(f + 10, d2);
}

// size is the length of the frame as it is now.
inlined u32 size(struct xdp_md *ctx) { return rules.frags ? xdp_get_buff_len(ctx) : ctx->data_end - ctx->data; }

// fits reports whether n bytes of packet are in the frame. What follows is Ethernet's padding or, in a frame of more than 64 bytes
// without tags, a trailer, which is removed as far as Ethernet's shortest frame permits.
inlined int fits(struct request *q, u32 n)
{
	u32 all = q->length - q->l3;
	if (likely(n == all))
		return 1;
	if (n > all)
		return 0;
	if (all > 50)
		q->length = q->l3 + (n > 46 ? n : 46);
	return 1;
}
