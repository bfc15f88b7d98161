// Test packets, as fastpath/stamp.go has them, and the clocks that their times come from.

// ntp is a time of the kernel's TAI as NTP has it, in UTC (RFC 5905 §6): seconds since 1900 above, their fraction below.
inlined u64 ntp(const struct clock *c, u64 tai)
{
	u64 s = tai / 1000000000, ns = tai - s * 1000000000;
	return (s + 2208988800ULL - c->offset) << 32 | ns * 9223372037ULL >> 31; // 2^63 / 10^9, and less than 2^-32 s off
}

inlined struct clock *clock_in_force(void)
{
	u32 zero = 0;
	struct clock_pair *both = map_lookup_elem(&clocks, &zero);
	return both ? &both->clock[both->sequence & 1] : 0;
}

// received returns when the device received the frame, by the kernel's TAI, or 0. The relation of the two clocks holds for two
// seconds: the process that updates it may have exited.
inlined u64 received(const struct request *q, const struct clock *c)
{
	u64 since = q->device - c->device_at;
	if (!q->device || !c->device_rate || since >> 31)
		return 0;
	return c->device_tai + (since * c->device_rate >> 32);
}

inlined void put_be64(u8 *p, u64 v)
{
	put32(p, __builtin_bswap32(v >> 32));
	put32(p + 4, __builtin_bswap32(v));
}

// reflect turns the test packet in datagram d, which is whole, into a reflector's. It was received when its device says, or
// else when the program began, and is sent when the time is written: the frame leaves at the doorbell that comes after.
inlined int reflect(const struct request *q, u8 *d, const u8 *end, u8 hops, int grown)
{
	struct clock *c = clock_in_force();
	u8 *p = d + 8;
	if (!c || p + STAMP_LENGTH > end)
		return 0;
	u64 before = 0, after = 0;
	for (int i = 0; i < 40; i += 4)
		before += get32(p + i);
	before += p[40];
	put32(p + 24, get32(p));
	put32(p + 28, get32(p + 4));
	put32(p + 32, get32(p + 8));
	put16(p + 36, get16(p + 12));
	put16(p + 38, 0);
	p[40] = hops;
	if (grown)
		put16(p + 14, 0);
	put16(p + 12, swap16(c->error_estimate));
	u64 t2 = received(q, c), elapsed = ktime_get_ns() - q->start, t3 = ktime_get_tai_ns();
	t2 = ntp(c, t2 ? t2 : t3 - elapsed);
	put_be64(p + 16, rules.still ? rules.still : t2);
	put_be64(p + 4, rules.still ? rules.still : ntp(c, t3));
	for (int i = 0; i < 40; i += 4)
		after += get32(p + i);
	after += p[40];
	u16 hc = get16(d + 6);
	if (hc) {
		hc = update(hc, fold(before), fold(after));
		put16(d + 6, hc ? hc : 0xffff);
	}
	return 1;
}

// grow gives a test packet that is shorter than its reply, and turned around but for that, its length and its contents.
inlined int grow(struct request *q, int v6)
{
	struct xdp_md *ctx = q->ctx;
	u32 was = q->grows, n = 8 + STAMP_BASE, at = q->at, l3 = q->l3;
	if (was < 8 + STAMP_SENDER || was > n || at > 22 + 40 || l3 > 22)
		return 0;
	if (xdp_adjust_tail(ctx, (int)(at + n) - (int)size(ctx)))
		return 0;
	q->length = at + n;
	u8 *f = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end, *d = f + at, *p = f + l3;
	if (d + 8 + STAMP_BASE > end || p + 20 > end)
		return 0;
	for (u32 i = 8 + STAMP_SENDER; i < 8 + STAMP_BASE; i++)
		d[i] &= (int)(i - was) >> 31; // 0 from was on; a branch would double what the verifier walks
	u16 hc = get16(d + 6), m = swap16(was), m2 = swap16(n);
	put16(d + 4, m2);
	if (hc) {
		hc = update(update(hc, m, m2), m, m2); // the length is in it twice
		put16(d + 6, hc ? hc : 0xffff);
	}
	if (v6) {
		put16(p + 4, m2);
	} else {
		put16(p + 2, swap16(20 + n));
		put16(p + 10, update(get16(p + 10), swap16(20 + was), swap16(20 + n)));
	}
	return reflect(q, d, end, q->hops, 1);
}
