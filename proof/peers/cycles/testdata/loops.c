// Polling loops of a responder in C, over rings in memory, with the 82599's descriptors: what the loops in Go are held
// against. Usage: loops CPU GROUPS; prints a line for each loop and case,
//
//	NAME CASE ALL DOORBELL HARNESS
//
// in ticks of the cycle counter for each reply: the lower quartile of groups of 64 passes, the same without the longest four of
// each group (in which a loop tidies up behind its doorbell), and the empty pass that was taken off both. A case is batch=N of pings of 64
// bytes, or kind/tag=no/size=N/batch=N as in proof/nictest/kinds.go.
//
//	least     swaps addresses and ports, makes the reply, posts it, arms the slot again: no guard, nothing checked
//	guarded   the same with all guards of fastpath's strict mode for each kind, and its counters; checksums of whole frames
//	ported    guarded, with the book-keeping of nic/drivers/ixgbe's Poll: a slot is armed when its transmit is done, in order
//
// ARP, options, fragments and so on are told apart, as in Go, and would call slow.
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <x86intrin.h>
static inline uint64_t ticks(void) { return __rdtsc(); }
static inline uint64_t fenced(void) {
	_mm_lfence();
	uint64_t t = __rdtsc();
	_mm_lfence();
	return t;
}
static inline void before_doorbell(void) { __asm__ volatile("" ::: "memory"); }
// wide is the sum of n bytes, a multiple of 32, as 32-bit words: a is the sum of the 64-bit lanes, b that of their upper halves.
typedef __m256i v;
#define WIDE_INLINE static inline __attribute__((target("avx2"), always_inline))
WIDE_INLINE v plus(v x, v y) { return _mm256_add_epi64(x, y); }
WIDE_INLINE v upper(v x) { return _mm256_srli_epi64(x, 32); }
WIDE_INLINE v at(const uint8_t *p) { return _mm256_loadu_si256((const v *)p); }
static __attribute__((target("avx2"), noinline)) uint64_t wide(const uint8_t *p, int n) {
	v a0 = {0}, a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
	for (; n >= 128; n -= 128, p += 128) {
		v w = at(p), x = at(p + 32), y = at(p + 64), z = at(p + 96);
		a0 = plus(a0, w), a1 = plus(a1, x), a2 = plus(a2, y), a3 = plus(a3, z);
		b0 = plus(b0, upper(w)), b1 = plus(b1, upper(x)), b2 = plus(b2, upper(y)), b3 = plus(b3, upper(z));
	}
	for (; n > 0; n -= 32, p += 32) a0 = plus(a0, at(p)), b0 = plus(b0, upper(at(p)));
	a0 = plus(plus(a0, a1), plus(a2, a3)), b0 = plus(plus(b0, b1), plus(b2, b3));
	a0 = plus(_mm256_sub_epi64(a0, _mm256_slli_epi64(b0, 32)), b0);
	__m128i s = _mm_add_epi64(_mm256_castsi256_si128(a0), _mm256_extracti128_si256(a0, 1));
	return _mm_extract_epi64(s, 0) + _mm_extract_epi64(s, 1);
}
static inline int has_wide(void) { return __builtin_cpu_supports("avx2"); }
#elif defined(__aarch64__)
static inline uint64_t ticks(void) {
	uint64_t v;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
	return v;
}
static uint64_t wide(const uint8_t *p, int n) {
	uint64_t s = 0;
	for (uint32_t x; n > 0; n -= 4, p += 4) memcpy(&x, p, 4), s += x;
	return s;
}
static inline int has_wide(void) { return 1; }
static inline uint64_t fenced(void) {
	uint64_t v;
	__asm__ volatile("dsb sy\n\tisb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(v)::"memory");
	return v;
}
static inline void before_doorbell(void) { __asm__ volatile("dmb oshst" ::: "memory"); }
#endif

enum { RING = 512, MASK = RING - 1, STRIDE = 9216 + 64, BUF = 9216, WIDE = 128, BATCH = 32, REFILL = 32, TIDY = 32, PASSES = 64, LONGEST = 4 };
enum { DD = 1, EOP = 2, RXE = 1 << 29, TX_WHOLE = 3 << 20 | 1 << 24 | 1 << 25 | 1 << 29, TX_RS = 1 << 27 };

struct rx { volatile uint64_t pkt, hdr; };          // read format; write-back: hdr is status 31:0, length 47:32
struct tx { volatile uint64_t addr; volatile uint32_t cmd, status; };

// A queue pair, as nic/drivers/ixgbe has it. Loops get it and the responder by pointers, since a driver has more than one of them.
struct queue {
	struct rx *rx;
	struct tx *tx;
	uint8_t *buf;
	uint64_t iova;
	volatile uint32_t *rdt, *tdt;
	uint32_t mask, stride, size;
	uint32_t rx_next, tx_tail, tx_done, tx_room, armed, given;
	struct batch { uint32_t end, slot; } batches[RING];
	uint64_t bad, full;
};

// What strict knows of itself: its MAC as loaded 16 bits up, addresses by a multiplicative hash, the sources that it refuses, the ports, the
// VLANs, a source's tag in the limit, and the test packets that wait for the time.
struct responder {
	uint64_t mac, mul6;
	uint32_t mul;
	int open, checksum_bytes, wide, stamps;
	uint64_t answered[6], refused;
	uint64_t cost, burst, most, now;
	uint64_t at, ntp, rate; // a tick, the time then, and NTP units a tick, 32 bits of fraction
	uint16_t estimate;
	struct stamp { uint8_t *at; uint64_t sum; } stamp[BATCH];
	struct place { uint64_t full, source; } places[4096];
	uint32_t own[1024], not[1024];
	struct ip6 { uint64_t hi, lo; } own6[256];
	uint64_t echo[1024], reflect[1024], service[1024], vlans[64];
};

static inline uint64_t l64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint32_t l32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint16_t l16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline void s64(void *p, uint64_t v) { memcpy(p, &v, 8); }
static inline void s32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void s16(void *p, uint16_t v) { memcpy(p, &v, 2); }

static __attribute__((noinline)) int slow(struct responder *r, uint8_t *h, int n) { (void)h; (void)n; r->refused++; return 0; }

static inline void doorbell(volatile uint32_t *reg, uint32_t v) {
	before_doorbell();
	*reg = v;
}

static inline void swap4(uint8_t *h) {
	uint32_t d = l32(h);
	uint16_t e = l16(h + 4);
	uint64_t s = l64(h + 6), a = l64(h + 26);
	s64(h, s), s32(h + 6, d), s16(h + 10, e); // what the first stores of the type is the second's place
	s64(h + 26, a << 32 | a >> 32);
}

static inline void pong4(uint8_t *h) {
	uint32_t change = (8 << 16) - 8, w = l32(h + 34) + change;
	s32(h + 34, w < change ? w + (1 << 16) : w);
}

static inline uint64_t add1c(uint64_t a, uint64_t b) { uint64_t s; return s = a + b, s + (s < b); } // end-around carry

static inline int has(const uint64_t *set, uint16_t i) { return set[i >> 6] >> (i & 63) & 1; }

// residue adds a segment to s, modulo 65535: its first word, what is left of whole blocks of 32 bytes, the last bytes, the blocks.
static inline uint64_t residue(const struct responder *r, const uint8_t *p, int n, uint64_t s) {
	s = add1c(s, l64(p));
	const uint8_t *end = p + n;
	n -= 8, p += 8;
	if (n & 16) s = add1c(add1c(s, l64(p)), l64(p + 8)), p += 16;
	if (n & 8) s = add1c(s, l64(p)), p += 8;
	if (n & 7) s = add1c(s, l64(end - 8) >> (-8 * n & 63));
	if (n >= WIDE && r->wide) return add1c(s, wide(p, n & ~31)) % 0xffff;
	for (; n >= 32; n -= 32, p += 32) s = add1c(add1c(add1c(add1c(s, l64(p)), l64(p + 8)), l64(p + 16)), l64(p + 24));
	return s % 0xffff;
}

// settle gives a new source its place. Each source of the benchmark is new once.
static __attribute__((noinline)) int settle(struct place *f, uint64_t source, uint64_t full) { f->full = full, f->source = source; return 1; }

static inline int take(struct responder *r, uint64_t source) {
	uint64_t now = r->now << 4, ahead;
	struct place *f = &r->places[source >> 52];
	if (f->source != source) return settle(f, source, now + r->cost);
	ahead = f->full - now;
	if (ahead > r->most) f->full = now + r->cost;
	else if (ahead > r->burst) return 0;
	else f->full += r->cost;
	return 1;
}

// The frame is at h, its packet 14 bytes behind p, which is h or behind a tag.
static inline int macs(const struct responder *r, const uint8_t *h) {
	return r->open || (l64(h) << 16 == r->mac && l64(h + 6) << 16 != r->mac && !(h[6] & 1));
}

static inline int hosts4(const struct responder *r, const uint8_t *p) {
	uint32_t s = l32(p + 26), d = l32(p + 30);
	return r->open || ((l64(p + 14) + l32(p + 22) + s + d) % 0xffff == 0 &&
	                   r->own[d * r->mul >> 22] == d && r->not[s * r->mul >> 22] != s && (uint8_t)(p[26] - 1) < 223 && p[26] != 127);
}

static inline int own6(const struct responder *r, uint64_t hi, uint64_t lo) {
	const struct ip6 *o = &r->own6[(hi + lo * r->mul6) * r->mul6 >> 56];
	return o->hi == hi && o->lo == lo;
}

static inline int hosts6(const struct responder *r, const uint8_t *p) {
	uint64_t hi = l64(p + 22);
	return r->open || (own6(r, l64(p + 38), l64(p + 46)) && hi && p[22] != 0xff && !own6(r, hi, l64(p + 30)));
}

static inline uint64_t hosts_sum6(const uint8_t *p) { return add1c(add1c(add1c(l64(p + 22), l64(p + 30)), l64(p + 38)), l64(p + 46)); }
static inline uint64_t hash6(const uint8_t *p) { return (l64(p + 22) * 0xbf58476d1ce4e5b9 ^ l64(p + 30)) * 0x9e3779b97f4a7c15; }

static inline void hops4(uint8_t *p, uint8_t ttl) {
	uint32_t s = (uint16_t)~l16(p + 24) + 0xffffu - p[22] + ttl;
	s = (s & 0xffff) + (s >> 16);
	p[22] = ttl;
	s16(p + 24, (uint16_t)~(s + (s >> 16)));
}

static inline void swap_macs(uint8_t *h) {
	uint64_t s = l64(h + 6), d = l64(h);
	s64(h, s), s64(h + 6, (d & 0xffffffffffff) | s >> 48 << 48);
}

static inline void swap6(uint8_t *p) {
	uint64_t a = l64(p + 22), b = l64(p + 30);
	s64(p + 22, l64(p + 38)), s64(p + 30, l64(p + 46)), s64(p + 38, a), s64(p + 46, b);
}

static inline uint64_t ntp(const struct responder *r, uint64_t tick) {
	return r->ntp + (uint64_t)((unsigned __int128)(tick - r->at) * r->rate >> 32);
}

static inline uint16_t fold(uint64_t s) {
	s %= 0xffff;
	return s ? s : 0xffff;
}

// reflect makes a test packet the reply, but for its time of sending, which departed fills in. c is the UDP checksum's place.
static inline void reflect(struct responder *r, uint8_t *c, uint8_t ttl) {
	uint8_t *t = c + 2;
	uint64_t came = __builtin_bswap64(ntp(r, r->now)), seq = l32(t), time = l64(t + 4), b = l64(t + 16), d = l64(t + 24), e = l64(t + 32);
	uint16_t estimate = l16(t + 12);
	struct stamp *stamp = &r->stamp[r->stamps++ & (BATCH - 1)];
	stamp->at = c, stamp->sum = 0;
	if (l16(c)) {
		uint64_t s = add1c(add1c(add1c(b, d), e), (uint64_t)t[40] + l16(c) + (0xffff - r->estimate) + (0xffff - ttl));
		stamp->sum = add1c(add1c(s, ~came), (uint32_t)~seq);
	}
	s16(t + 12, r->estimate), s64(t + 16, came);
	s32(t + 24, seq), s64(t + 28, time), s32(t + 36, estimate), t[40] = ttl;
}

// departed writes the time into the test packets of a pass.
static inline void departed(struct responder *r) {
	uint64_t now = __builtin_bswap64(ntp(r, ticks()));
	for (; r->stamps; ) {
		struct stamp *s = &r->stamp[--r->stamps];
		s64(s->at + 6, now);
		if (s->sum) s16(s->at, fold(add1c(s->sum, ~now)));
	}
}

static inline int answer(struct responder *r, uint8_t *h, int n) {
	uint8_t *p = h;
	int l, m = n;
	if (l16(h + 12) == 0x0081) {
		if (!has(r->vlans, __builtin_bswap16(l16(h + 14)) & 0xfff)) return slow(r, h, n);
		p += 4, m -= 4;
	} else if (!has(r->vlans, 0)) {
		return slow(r, h, n);
	}
	uint32_t w = l32(p + 12), x = l32(p + 20);
	if ((w & 0xffffff) == 0x450008) {
		l = __builtin_bswap16(l16(p + 16));
		if ((x & 0xffbf) || l < 28 || !(l + 14 == m || (l + 14 < m && m <= 64)) || !macs(r, h) || !hosts4(r, p)) return slow(r, h, n);
		uint64_t source = l32(p + 26) * 0x9e3779b97f4a7c15;
		if (x >> 24 == 1) {
			uint32_t v = l32(p + 34), change = (8 << 16) - 8;
			if ((uint16_t)v != 8 || v == 0xfff70008) return slow(r, h, n);
			if (l <= r->checksum_bytes && residue(r, p + 34, l - 20, 0)) return slow(r, h, n);
			if (!take(r, source)) return slow(r, h, n);
			v += change;
			s32(p + 34, v < change ? v + (1 << 16) : v);
			uint32_t t = l32(p + 22);
			if (((uint8_t)t != 64 || t >= 0xffff0000) && !r->open) hops4(p, 64);
			r->answered[0]++;
		} else if (x >> 24 == 17) {
			uint32_t ports = l32(p + 34);
			int stamp = 0;
			if (!has(r->echo, ports >> 16) && !(stamp = has(r->reflect, ports >> 16))) return slow(r, h, n);
			if (has(r->service, (uint16_t)ports) || __builtin_bswap16(l16(p + 38)) != l - 20 || p[22] < 2 || (stamp && l < 28 + 41)) return slow(r, h, n);
			uint64_t pseudo = (uint64_t)l32(p + 26) + l32(p + 30) + 0x1100 + l16(p + 38);
			if (l <= r->checksum_bytes && l16(p + 40) && residue(r, p + 34, l - 20, pseudo)) return slow(r, h, n);
			if (!take(r, source)) return slow(r, h, n);
			if (stamp) reflect(r, p + 40, p[22]);
			s32(p + 34, ports << 16 | ports >> 16);
			if (!r->open) hops4(p, p[22] - 1 < 64 ? p[22] - 1 : 64);
			r->answered[1 + 3 * stamp]++;
		} else {
			return slow(r, h, n);
		}
		uint64_t a = l64(p + 26);
		s64(p + 26, a << 32 | a >> 32);
		swap_macs(h);
		return n;
	}
	if ((w & 0xf0ffff) == 0x60dd86) {
		l = __builtin_bswap16(l16(p + 18)) + 40;
		if (l < 48 || !(l + 14 == m || (l + 14 < m && m <= 64)) || !macs(r, h) || !hosts6(r, p)) return slow(r, h, n);
		if ((uint8_t)x == 58) {
			if (l16(p + 54) != 128) return slow(r, h, n);
			if (l <= r->checksum_bytes && residue(r, p + 54, l - 40, add1c(hosts_sum6(p), 0x3a00 + l16(p + 18)))) return slow(r, h, n);
			if (!take(r, hash6(p))) return slow(r, h, n);
			uint32_t s = (~l32(p + 54) >> 16) + 1;
			s32(p + 54, ~(s + (s >> 16)) << 16 | 129);
			if (!r->open) p[21] = 64;
			r->answered[2]++;
		} else if ((uint8_t)x == 17) {
			uint32_t ports = l32(p + 54);
			int stamp = 0;
			if (!has(r->echo, ports >> 16) && !(stamp = has(r->reflect, ports >> 16))) return slow(r, h, n);
			if (has(r->service, (uint16_t)ports) || l16(p + 58) != l16(p + 18) || p[21] < 2 || !l16(p + 60) || (stamp && l < 48 + 41)) return slow(r, h, n);
			if (l <= r->checksum_bytes && residue(r, p + 54, l - 40, add1c(hosts_sum6(p), 0x1100 + l16(p + 18)))) return slow(r, h, n);
			if (!take(r, hash6(p))) return slow(r, h, n);
			if (stamp) reflect(r, p + 60, p[21]);
			s32(p + 54, ports << 16 | ports >> 16);
			if (!r->open) p[21] = p[21] - 1 < 64 ? p[21] - 1 : 64;
			r->answered[3 + 2 * stamp]++;
		} else {
			return slow(r, h, n);
		}
		swap6(p);
		swap_macs(h);
		return n;
	}
	return slow(r, h, n);
}

static inline void send(struct queue *q, uint32_t tail, uint32_t at, uint32_t m) {
	struct tx *t = &q->tx[tail & q->mask];
	t->addr = q->iova + at;
	t->cmd = m | TX_WHOLE;
	t->status = m << 14;
}

static inline void arm(struct queue *q, uint32_t slot) {
	q->rx[slot].pkt = q->iova + slot * q->stride;
	q->rx[slot].hdr = 0;
}

// least takes each transmit for done: the least that a responder could do on these rings.
static __attribute__((noinline)) int least(struct queue *q, struct responder *r) {
	(void)r;
	uint32_t next = q->rx_next, tail = q->tx_tail;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & q->mask;
		uint64_t w = q->rx[slot].hdr;
		if (!(w & DD)) break;
		uint8_t *h = q->buf + slot * q->stride;
		pong4(h);
		swap4(h);
		send(q, tail++, slot * q->stride, (uint16_t)(w >> 32));
		arm(q, slot);
	}
	int n = tail - q->tx_tail;
	if (n) {
		doorbell(q->tdt, tail & q->mask);
		q->tx_done = q->tx_tail = tail;
		if (next - q->given >= REFILL) q->given = next, doorbell(q->rdt, (next - 1) & q->mask);
	}
	q->rx_next = q->armed = next;
	return n;
}

static __attribute__((noinline)) int guarded(struct queue *q, struct responder *r) {
	uint32_t next = q->rx_next, tail = q->tx_tail;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & q->mask;
		uint64_t w = q->rx[slot].hdr;
		if (!(w & DD)) break;
		int n = (uint16_t)(w >> 32);
		if ((w & (EOP | RXE)) != EOP || (unsigned)(n - 14) > q->size - 14) {
			q->bad++;
		} else {
			int m = answer(r, q->buf + slot * q->stride, n);
			if (m) send(q, tail++, slot * q->stride, m);
		}
		arm(q, slot);
	}
	int n = tail - q->tx_tail;
	if (n) {
		if (r->stamps) departed(r);
		doorbell(q->tdt, tail & q->mask);
		q->tx_done = q->tx_tail = tail;
		if (next - q->given >= REFILL) q->given = next, doorbell(q->rdt, (next - 1) & q->mask);
	}
	q->rx_next = q->armed = next;
	return n;
}

static __attribute__((noinline)) void tidy(struct queue *q) {
	uint32_t done = q->tx_done, free = q->rx_next;
	while (done != q->tx_tail) {
		struct batch *b = &q->batches[done & q->mask];
		if (!(q->tx[(b->end - 1) & q->mask].status & DD)) {
			free = b->slot;
			break;
		}
		done = b->end;
	}
	q->tx_done = done, q->tx_room = done + MASK;
	uint32_t armed = q->armed;
	for (; armed != free; armed++) arm(q, armed & q->mask);
	q->armed = armed;
	if (armed - q->given >= REFILL) q->given = armed, doorbell(q->rdt, (armed - 1) & q->mask);
}

static __attribute__((noinline)) int ported(struct queue *q, struct responder *r) {
	uint32_t next = q->rx_next, began = next, first = q->tx_tail, tail = first;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & q->mask;
		uint64_t w = q->rx[slot].hdr;
		if (!(w & DD)) break;
		int n = (uint16_t)(w >> 32);
		if ((w & (EOP | RXE)) != EOP || (unsigned)(n - 14) > q->size - 14) {
			q->bad++;
			continue;
		}
		int m = answer(r, q->buf + slot * q->stride, n);
		if (m && tail == q->tx_room) q->full++;
		else if (m) send(q, tail++, slot * q->stride, m);
	}
	q->rx_next = next;
	if (tail != first) {
		q->tx[(tail - 1) & q->mask].cmd |= TX_RS;
		q->batches[first & q->mask] = (struct batch){tail, began};
		q->tx_tail = tail;
		if (r->stamps) departed(r);
		doorbell(q->tdt, tail & q->mask);
		if (next - q->armed < TIDY) return tail - first;
	}
	if (q->tx_done != tail || q->armed != next) tidy(q);
	return tail - first;
}

static int batch;
static __attribute__((noinline)) int empty(struct queue *q, struct responder *r) { (void)q; (void)r; return batch; }

static uint8_t frame[BUF];
static int length;

static void arrive(struct queue *q, struct responder *r) {
	for (int i = 0; i < batch; i++) {
		uint32_t slot = (q->rx_next + i) & MASK;
		memcpy(q->buf + slot * STRIDE, frame, length);
		q->rx[slot].hdr = (uint64_t)length << 32 | DD | EOP;
	}
	for (uint32_t n = q->tx_done; n != q->tx_tail; n++)
		if (q->tx[n & MASK].cmd & TX_RS) q->tx[n & MASK].status |= DD;
	r->now += 1000;
}

static void nothing(struct queue *q, struct responder *r) { (void)q; (void)r; }

static struct queue queue;
static struct responder us;

static int rising(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quartile(double *v, int n) {
	qsort(v, n, sizeof *v, rising);
	return v[n / 4];
}

static uint32_t (*passes)[PASSES]; // ticks of each, by groups
static double *groups, *shorts;

static int longer(const void *a, const void *b) {
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static void measure(int count, void (*device)(struct queue *, struct responder *), int (*poll)(struct queue *, struct responder *), double *all, double *most) {
	for (int g = 0; g < count; g++)
		for (int p = 0; p < PASSES; p++) {
			device(&queue, &us);
			__sync_synchronize(); // a device's writes come from memory, not from this core's store buffer
			uint64_t t = fenced();
			int n = poll(&queue, &us);
			passes[g][p] = fenced() - t;
			if (n != batch) { fprintf(stderr, "%d replies in a pass, want %d\n", n, batch); exit(1); }
		}
	for (int g = 0; g < count; g++) {
		double sum = 0, head = 0;
		qsort(passes[g], PASSES, sizeof passes[g][0], longer);
		for (int p = 0; p < PASSES; p++) {
			sum += passes[g][p];
			if (p < PASSES - LONGEST) head += passes[g][p];
		}
		groups[g] = sum / (PASSES * batch);
		shorts[g] = head / ((PASSES - LONGEST) * batch);
	}
	*all = quartile(groups, count);
	*most = quartile(shorts, count);
}

static void start(struct queue *q) {
	q->rx_next = q->tx_tail = q->tx_done = q->armed = q->given = 0, q->tx_room = MASK;
	memset(q->tx, 0, RING * sizeof *q->tx);
	for (uint32_t s = 0; s < RING; s++) arm(q, s);
}

static uint16_t checksum(const uint8_t *p, int n, uint64_t s) {
	for (int i = 0; i < n; i += 2) s += p[i] << 8 | (i + 1 < n ? p[i + 1] : 0);
	s = (s & 0xffff) + (s >> 16), s = (s & 0xffff) + (s >> 16);
	return __builtin_bswap16((uint16_t)~(s + (s >> 16)));
}

enum kind { PING, UDP, PING6, UDP6, STAMP };
static const char *const kinds[] = {"ping", "udp", "ping6", "udp6", "stamp"};

// build makes the request of a kind, n bytes long without its tag.
static void build(enum kind k, int tagged, int n) {
	static const uint8_t head[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2};
	uint8_t f[BUF] = {0};
	int v6 = k == PING6 || k == UDP6, l4 = v6 ? 54 : 34, m = n - l4;
	memcpy(f, head, sizeof head);
	for (int i = l4 + 8; i < n; i++) f[i] = i * 7 + (i >> 8);
	if (v6) {
		f[12] = 0x86, f[13] = 0xdd, f[14] = 0x60, f[18] = m >> 8, f[19] = m, f[20] = k == PING6 ? 58 : 17, f[21] = 64;
		f[22] = f[38] = 0x20, f[37] = 1, f[53] = 2;
	} else {
		static const uint8_t ip[] = {8, 0, 0x45, 0, 0, 0, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
		memcpy(f + 12, ip, sizeof ip);
		f[16] = (n - 14) >> 8, f[17] = n - 14, f[23] = k == PING ? 1 : 17;
		s16(f + 24, checksum(f + 14, 20, 0));
	}
	uint64_t pseudo = v6 ? (uint16_t)~__builtin_bswap16(checksum(f + 22, 32, 0)) : (uint16_t)~__builtin_bswap16(checksum(f + 26, 8, 0));
	if (k == PING || k == PING6) {
		f[l4] = v6 ? 128 : 8;
		s16(f + l4 + 2, checksum(f + l4, m, v6 ? pseudo + 58 + m : 0));
	} else {
		f[l4] = 40000 >> 8, f[l4 + 1] = 40000 & 255, f[l4 + 2] = k == STAMP ? 862 >> 8 : 0, f[l4 + 3] = k == STAMP ? 862 & 255 : 7;
		f[l4 + 4] = m >> 8, f[l4 + 5] = m;
		s16(f + l4 + 6, checksum(f + l4, m, pseudo + 17 + m));
	}
	length = n + 4 * tagged;
	memcpy(frame, f, 12);
	memcpy(frame + 12, "\x81\x00\x00\x64", 4);
	memcpy(frame + 12 + 4 * tagged, f + 12, n - 12);
}

typedef int poll_function(struct queue *, struct responder *);
static void report(const char *name, const char *what, int count, poll_function *poll) {
	double none, none_short, all, most;
	measure(count, nothing, empty, &none, &none_short);
	start(&queue);
	measure(count, arrive, poll, &all, &most);
	printf("%s %s %.2f %.2f %.2f\n", name, what, all - none, most - none_short, none);
}

static void add(uint64_t *set, uint16_t port) { port = __builtin_bswap16(port), set[port >> 6] |= 1ull << (port & 63); }

int main(int argc, char **argv) {
	if (argc != 3) return 2;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof set, &set)) { perror("sched_setaffinity"); return 1; }
	int count = atoi(argv[2]);
	groups = calloc(count, sizeof *groups), shorts = calloc(count, sizeof *shorts), passes = calloc(count, sizeof *passes);
	size_t huge = 2 << 20, size = RING * (2 * 16 + STRIDE), whole = (size + huge - 1) & ~(huge - 1);
	uint8_t *mem = mmap(NULL, whole + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED || !groups || !shorts || !passes) { perror("memory"); return 1; }
	mem = (uint8_t *)(((uintptr_t)mem + huge - 1) & ~(huge - 1));
	madvise(mem, whole, MADV_HUGEPAGE);
	memset(mem, 0, whole);
	static volatile uint32_t rdt, tdt;
	struct queue *q = &queue;
	q->rx = (struct rx *)mem, q->tx = (struct tx *)(mem + RING * 16), q->buf = mem + RING * 32, q->iova = 1ull << 32;
	q->mask = MASK, q->stride = STRIDE, q->size = BUF, q->rdt = &rdt, q->tdt = &tdt;

	uint8_t own[8] = {0, 0, 2, 0, 0, 0, 0, 1};
	struct responder *r = &us;
	r->mac = l64(own), r->mul = 0x9e3779b1, r->mul6 = 0x9e3779b97f4a7c15, r->checksum_bytes = 65535, r->wide = has_wide();
	build(PING6, 0, 64);
	uint64_t hi = l64(frame + 38), lo = l64(frame + 46);
	r->own6[0].hi = 1, r->own6[(hi + lo * r->mul6) * r->mul6 >> 56] = (struct ip6){hi, lo};
	build(PING, 0, 64);
	uint32_t d = l32(frame + 30);
	r->own[d * r->mul >> 22] = d, r->not[d * r->mul >> 22] = d;
	r->cost = 16, r->burst = 1ull << 40, r->most = r->burst + r->cost, r->now = 1ull << 40;
	r->at = r->now, r->ntp = 1ull << 60, r->rate = 1ull << 31, r->estimate = 0x8785;
	add(r->echo, 7), add(r->reflect, 862);
	for (int i = 0; i < 1024; i++) add(r->service, i);
	memset(r->vlans, 255, sizeof r->vlans);

	static const struct { const char *name; poll_function *poll; } loops[] = {{"least", least}, {"guarded", guarded}, {"ported", ported}};
	static const int batches[] = {1, 32}, sizes[] = {64, 86, 256, 1500, 9000};
	char what[100];
	for (unsigned b = 0; b < 2; b++) {
		batch = batches[b];
		snprintf(what, sizeof what, "batch=%d", batch);
		for (unsigned l = 0; l < 3; l++) report(loops[l].name, what, count, loops[l].poll);
	}
	for (enum kind k = PING; k <= STAMP; k++)
		for (int tagged = 0; tagged < 2; tagged++)
			for (unsigned z = 0; z < 5; z++)
				for (unsigned b = 0; b < 2; b++) {
					if ((k == STAMP && sizes[z] < 86) || (b && sizes[z] > 86)) continue;
					build(k, tagged, sizes[z]);
					batch = batches[b];
					snprintf(what, sizeof what, "%s/tag=%s/size=%d/batch=%d", kinds[k], tagged ? "yes" : "no", sizes[z], batch);
					report("guarded", what, count / 2, guarded);
				}
	return r->refused || q->bad || q->full ? 1 : 0;
}
