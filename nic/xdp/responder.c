//go:build ignore

// The rules of package fastpath as an XDP program: it answers in the driver's receive path what Slow answers, for the same
// reasons, and with the same bytes. Order and names follow fastpath/slow.go and neighbour.go; the differential test holds the
// two together. Bytes are handled as a little-endian machine loads them: a sum of swapped words is the swapped sum (RFC 1071).
//
// It needs no header: what it takes from the kernel's interface is declared here.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct xdp_md {
	u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

enum { XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3 };

#define SEC(name) __attribute__((section(name), used))
#define inlined static inline __attribute__((always_inline))
#define separate __attribute__((noinline))
#define keep(v) asm volatile("" : "+r"(v))

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static long (*const xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;

// Verdicts, in fastpath's order.
enum verdict {
	ANSWERED_ICMPV4, ANSWERED_UDPV4, ANSWERED_ICMPV6, ANSWERED_UDPV6, ANSWERED_ARP, ANSWERED_ND, ANSWERED_STAMPV4, ANSWERED_STAMPV6,
	SHORT, VLAN, ETHERTYPE, MAC, SOURCE_MAC, VERSION, OPTIONS, FRAGMENT, EXTENSION, LENGTH, HEADER_CHECKSUM, ADDRESS, SOURCE,
	OWN_SOURCE, PROTOCOL, ICMP_TYPE, PORT, SERVICE_PORT, HOP_LIMIT, NO_CHECKSUM, STAMP_SHORT, CHECKSUM, RATE, ARP_OTHER,
	ARP_ANNOUNCEMENT, ND_INVALID,
	VERDICTS,
};

#define ANSWERED(v) ((v) <= ANSWERED_STAMPV6)

// What a guard refused is dropped: the kernel may own the address, and would answer where the guard said no. All else goes on
// to the kernel, and so do ARP and ND, by which it finds that somebody else has its address.
#define GUARDED \
	(1ULL << SOURCE_MAC | 1ULL << HEADER_CHECKSUM | 1ULL << SOURCE | 1ULL << OWN_SOURCE | 1ULL << SERVICE_PORT | 1ULL << HOP_LIMIT | \
	 1ULL << NO_CHECKSUM | 1ULL << STAMP_SHORT | 1ULL << CHECKSUM | 1ULL << RATE)

enum {
	MAX_ADDRESSES = 32, // fastpath.MaxAddresses
	MAX_FRAME = 4096,   // without further buffers a frame is shorter
	HOPS = 64,
	STAMP_LENGTH = 41,
	SLOTS = 4096,
	SUB_BITS = 7, // polling's
	BUCKETS = (40 - SUB_BITS + 1) << SUB_BITS,
};

struct in6 {
	u64 hi, lo;
};

// Set before the program is loaded.
struct rule_set {
	u8 mac[6];
	u8 open;
	u8 partial;
	u32 checksum_bytes;
	u32 own4_count, not4_count, own6_count;
	u64 cost, burst, most; // of the limit, in 1/16 ns
};

const volatile struct rule_set rules;
const volatile u32 own4[MAX_ADDRESSES];
const volatile u32 not4[3 * MAX_ADDRESSES];
const volatile struct in6 own6[MAX_ADDRESSES];
const volatile u64 vlans[4096 / 64];
const volatile u64 echo_ports[65536 / 64]; // by ports as they are loaded
const volatile u64 stamp_ports[65536 / 64];
const volatile u64 service_ports[65536 / 64];

// What one CPU counts. Softirqs do not nest on a CPU: each has one writer.
struct cpu_counts {
	u64 verdicts[64];
	u64 full[SLOTS]; // the limit: when each source's bucket will be full
	u64 rx_bytes, tx_bytes;
	u64 turnaround_max;
	u64 turnaround[BUCKETS]; // ns
};

// As fastpath.Clock, by the monotonic clock in ns.
struct clock {
	u64 at, ntp, rate, error_estimate;
};

struct {
	int (*type)[2]; // BPF_MAP_TYPE_ARRAY
	int (*map_flags)[1024]; // BPF_F_MMAPABLE
	u32 *key;
	struct cpu_counts *value;
	int (*max_entries)[1]; // set to the number of CPUs
} cpus SEC(".maps");

// Two clocks; the sequence number's lowest bit says which is in force, so that a reader never sees half of one.
struct clock_pair {
	u64 sequence;
	struct clock clock[2];
};

struct {
	int (*type)[2];
	int (*map_flags)[1024];
	u32 *key;
	struct clock_pair *value;
	int (*max_entries)[1];
} clocks SEC(".maps");

// A request as it is looked at: the frame from its first byte, and what the functions need of it.
struct request {
	struct xdp_md *ctx;
	struct cpu_counts *cpu;
	u64 start;
	u32 length; // of the frame
	u32 l3;     // where the packet starts: 14, 18 or 22
};

inlined u16 swap16(u16 v) { return v << 8 | v >> 8; }

inlined u16 get16(const void *p) { return *(const u16 *)p; }
inlined u32 get32(const void *p) { return *(const u32 *)p; }
inlined u64 get64(const void *p) { return *(const u64 *)p; }
inlined u16 be16(const void *p) { return swap16(get16(p)); }
inlined void put16(void *p, u16 v) { *(u16 *)p = v; }
inlined void put32(void *p, u32 v) { *(u32 *)p = v; }

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

// sum adds the words of length bytes at offset from of the frame, not yet folded to 16 bits.
separate u64 sum(struct xdp_md *ctx, u32 from, u32 length)
{
	const u8 *end = (void *)(long)ctx->data_end;
	u64 s = 0;
	if (from > MAX_FRAME)
		return 0;
	const u8 *p = (const u8 *)(long)ctx->data + from;
	u32 i;
	for (i = 0; i < MAX_FRAME / 8 && length >= 8; i++, length -= 8, p += 8) {
		keep(p); // clang would count the rounds by arithmetic on end, which the verifier forbids
		if (p + 8 > end)
			return 0;
		u64 w = get64(p);
		s += (w >> 32) + (w & 0xffffffff);
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

inlined int has(const volatile u64 *set, u16 v) { return set[v >> 6] >> (v & 63) & 1; }

inlined int ours4(u32 a)
{
	for (u32 i = 0; i < MAX_ADDRESSES && i < rules.own4_count; i++)
		if (own4[i] == a)
			return 1;
	return 0;
}

inlined int ours6(u64 hi, u64 lo)
{
	for (u32 i = 0; i < MAX_ADDRESSES && i < rules.own6_count; i++)
		if (own6[i].hi == hi && own6[i].lo == lo)
			return 1;
	return 0;
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

inlined int is_our_mac(const u8 *m)
{
	return m[0] == rules.mac[0] && m[1] == rules.mac[1] && m[2] == rules.mac[2] && m[3] == rules.mac[3] && m[4] == rules.mac[4] &&
	       m[5] == rules.mac[5];
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

inlined void put_our_mac(u8 *m)
{
	for (int i = 0; i < 6; i++)
		m[i] = rules.mac[i];
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

// fits reports whether n bytes of packet fill the frame, Ethernet's padding aside.
inlined int fits(const struct request *q, u32 n)
{
	return q->l3 + n == q->length || (q->l3 + n < q->length && q->length - q->l3 + 14 <= 64);
}

// take is fastpath's limiter.
inlined int take(const struct request *q, u64 hash)
{
	u64 now = q->start << 4, *full = &q->cpu->full[hash >> 52];
	u64 ahead = *full - now;
	if (ahead > rules.most)
		ahead = 0;
	if (ahead > rules.burst)
		return 0;
	*full = now + ahead + rules.cost;
	return 1;
}

inlined u64 hash4(u32 a) { return a * 0x9e3779b97f4a7c15ULL; }
inlined u64 hash6(u64 hi, u64 lo) { return (hi * 0xbf58476d1ce4e5b9ULL ^ lo) * 0x9e3779b97f4a7c15ULL; }

inlined u64 time_at(const struct clock *c, u64 ns)
{
	u64 d = ns - c->at; // the clock is never ahead of the frame by more than the loading of it
	if ((long long)d < 0)
		d = 0;
	u64 high = d >> 32, low = (u32)d, rh = c->rate >> 32, rl = (u32)c->rate;
	return c->ntp + d * rh + high * rl + (low * rl >> 32);
}

inlined void put_be64(u8 *p, u64 v)
{
	put32(p, __builtin_bswap32(v >> 32));
	put32(p + 4, __builtin_bswap32(v));
}

// reflect turns the test packet in datagram d into a reflector's. The caller has seen that it is there.
inlined int reflect(const struct request *q, u8 *d, const u8 *end, u8 hops)
{
	u32 zero = 0;
	struct clock_pair *both = map_lookup_elem(&clocks, &zero);
	if (!both)
		return 0;
	struct clock *c = &both->clock[both->sequence & 1];
	u8 *p = d + 8;
	if (p + STAMP_LENGTH > end)
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
	put16(p + 12, swap16(c->error_estimate));
	put_be64(p + 16, time_at(c, q->start));
	put_be64(p + 4, time_at(c, ktime_get_ns()));
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

// udp answers the datagram of n bytes at offset at. hosts is where the pseudo-header's addresses start and header the length of
// the packet's header, hash that of the source.
inlined int udp(const struct request *q, u32 at, u32 n, u32 hosts, u32 header, u64 hash, u8 hops)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *d = f + at;
	if (n < 8 || d + 8 > end || be16(d + 4) != n)
		return LENGTH;
	u16 from = get16(d), to = get16(d + 2), ck = get16(d + 6);
	int v6 = header == 40, stamp = has(stamp_ports, to);
	if (!stamp && !has(echo_ports, to))
		return PORT;
	if (has(service_ports, from))
		return SERVICE_PORT;
	if (!rules.open && hops < 2)
		return HOP_LIMIT;
	if (v6 && ck == 0)
		return NO_CHECKSUM;
	if (stamp && n < 8 + STAMP_LENGTH)
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
	if (!take(q, hash))
		return RATE;
	if (partial) {
		ck = ~fold(sum(q->ctx, at, n));
		put16(d + 6, ck ? ck : 0xffff);
	}
	if (stamp && !reflect(q, d, end, hops))
		return STAMP_SHORT;
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

inlined int ipv4(const struct request *q)
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

// options checks a solicitation's options from offset at to end, and returns where the last sender's link-layer address is, 0
// if there is none, or -1 if they are not valid. With write it turns them into the target's.
separate int options(struct xdp_md *ctx, u32 at, u32 end, int write)
{
	u8 *f = (u8 *)(long)ctx->data, *last = (u8 *)(long)ctx->data_end;
	u32 found = 0;
	if (end > MAX_FRAME)
		return -1;
	for (u32 i = 0; i < MAX_FRAME / 8 && at < end; i++) {
		if (at + 8 > end || at > MAX_FRAME)
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

inlined int solicitation(const struct request *q, u32 *what)
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
		u8 *a = f + (lla & (MAX_FRAME - 1));
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
inlined int advertisement(const struct request *q, u32 dad)
{
	struct xdp_md *ctx = q->ctx;
	u32 l3 = q->l3;
	if (l3 > 22)
		return 0;
	if (dad && xdp_adjust_tail(ctx, (int)(l3 + 72) - (int)q->length))
		return 0;
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

inlined int ipv6(const struct request *q, u32 *what)
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

inlined int arp(const struct request *q)
{
	u8 *f = (u8 *)(long)q->ctx->data, *end = (u8 *)(long)q->ctx->data_end, *a = f + q->l3;
	int v;
	if (a + 28 > end)
		return SHORT;
	if (!is_our_mac(f) && (get32(f) != 0xffffffff || get16(f + 4) != 0xffff))
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

// bucket is polling.Bucket.
inlined u32 bucket(u64 v)
{
	if (v >> 40)
		return BUCKETS - 1;
	u32 above = v >> (SUB_BITS + 1), shift = above != 0; // how many bits v has beyond the linear ones
	for (u32 i = 16; i; i /= 2)
		if (above >> i) {
			shift += i;
			above >>= i;
		}
	return (shift << SUB_BITS) + (v >> shift);
}

SEC("xdp")
int respond(struct xdp_md *ctx)
{
	u8 *f = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	u32 cpu = get_smp_processor_id();
	struct request q = {.ctx = ctx, .start = ktime_get_ns(), .length = end - f, .l3 = 14};
	q.cpu = map_lookup_elem(&cpus, &cpu);
	if (!q.cpu)
		return XDP_PASS;
	int v = SHORT, others = 0, pass = 1;
	u32 what = 0;
	if (f + 14 > end)
		goto done;
	u16 type = be16(f + 12);
	for (int i = 0; i < 2 && (type == 0x8100 || type == 0x88a8); i++) {
		u8 *t = f + q.l3;
		if (t + 4 > end)
			goto done;
		others |= !has(vlans, be16(t) & 0xfff);
		type = be16(t + 2);
		q.l3 += 4;
	}
	if (others || (q.l3 == 14 && !has(vlans, 0))) {
		v = VLAN;
	} else if (type == 0x0800) {
		v = ipv4(&q);
		pass = 0;
	} else if (type == 0x86dd) {
		v = ipv6(&q, &what);
		pass = what & ND;
		if (v == ANSWERED_ND && !advertisement(&q, what & DAD))
			v = ND_INVALID;
	} else if (type == 0x0806) {
		v = arp(&q);
	} else {
		v = ETHERTYPE;
	}
done:
	q.cpu->verdicts[v & 63]++;
	q.cpu->rx_bytes += q.length;
	if (!ANSWERED(v))
		return pass || !(GUARDED >> (v & 63) & 1) ? XDP_PASS : XDP_DROP;
	q.cpu->tx_bytes += ctx->data_end - ctx->data;
	u64 took = ktime_get_ns() - q.start;
	u32 b = bucket(took);
	if (b < BUCKETS)
		q.cpu->turnaround[b]++;
	if (took > q.cpu->turnaround_max)
		q.cpu->turnaround_max = took;
	return XDP_TX;
}

const char licence[] SEC("license") = "Apache-2.0";
