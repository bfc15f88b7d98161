// Polling loops of a responder in C, over rings in memory, with the 82599's descriptors: what the loops in Go are held
// against. Usage: loops CPU GROUPS; prints a line for each loop and batch size,
//
//	NAME BATCH ALL DOORBELL HARNESS
//
// in ticks of the cycle counter for each reply: the lower quartile of groups of 64 passes, the same without the longest four of
// each group (in which a loop tidies up behind its doorbell), and the empty pass that was taken off both.
//
//	least     swaps addresses and ports, makes the reply, posts it, arms the slot again: no guard, nothing checked
//	guarded   the same with all guards of fastpath's strict mode for ICMPv4 echo, and its counters
//	ported    guarded, with the book-keeping of nic/drivers/ixgbe's Poll: a slot is armed when its transmit is done, in order
//
// Every frame is an ICMP echo request of 64 bytes over IPv4. The other kinds are told apart, as in Go, and would call slow.
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t fenced(void) {
	_mm_lfence();
	uint64_t t = __rdtsc();
	_mm_lfence();
	return t;
}
static inline void before_doorbell(void) { __asm__ volatile("" ::: "memory"); }
#elif defined(__aarch64__)
static inline uint64_t fenced(void) {
	uint64_t v;
	__asm__ volatile("dsb sy\n\tisb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(v)::"memory");
	return v;
}
static inline void before_doorbell(void) { __asm__ volatile("dmb oshst" ::: "memory"); }
#endif

enum { RING = 512, MASK = RING - 1, STRIDE = 2048 + 64, BUF = 2048, BATCH = 32, REFILL = 32, TIDY = 32, PASSES = 64, LONGEST = 4 };
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

// What strict knows of itself: its MAC as loaded 16 bits up, addresses by a multiplicative hash, the sources that it refuses.
struct responder {
	uint64_t mac;
	uint32_t mul;
	int open, checksum_bytes;
	uint64_t answered, refused;
	uint64_t cost, burst, most, now;
	struct place { uint64_t full, source; } places[4096];
	uint32_t own[1024], not[1024];
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

static inline uint32_t match(const uint8_t *h) {
	uint32_t w = l32(h + 12), x = l32(h + 20);
	switch ((uint16_t)w) {
	case 0x0008: return (w & 0xff0000) | (x & 0xff00ffbf);
	case 0xdd86: return (w & 0xf00000) | x << 24 | 0x40;
	}
	return 0;
}

static inline int ipv4(const struct responder *r, const uint8_t *h, int n) {
	int l = __builtin_bswap16(l16(h + 16)) + 14;
	return l >= 42 && (l == n || (l < n && n <= 64)) &&
	       (r->open || (l64(h) << 16 == r->mac && l64(h + 6) << 16 != r->mac && !(h[6] & 1)));
}

static inline uint64_t add1c(uint64_t a, uint64_t b) { uint64_t s; return s = a + b, s + (s < b); } // end-around carry

static inline int sum4(const struct responder *r, const uint8_t *h) {
	return r->open || (l64(h + 14) + l32(h + 22) + l32(h + 26) + l32(h + 30)) % 0xffff == 0;
}

static inline int hosts4(const struct responder *r, const uint8_t *h) {
	uint32_t s = l32(h + 26), d = l32(h + 30);
	return r->open || (r->own[d * r->mul >> 22] == d && r->not[s * r->mul >> 22] != s && (uint8_t)(h[26] - 1) < 223 && h[26] != 127);
}

static inline int echo4(const uint8_t *h) {
	uint32_t w = l32(h + 34);
	return (uint16_t)w == 8 && w != 0xfff70008;
}

// residue is a message's sum, modulo 65535: its first word, what is left of whole blocks of 32 bytes, the last bytes, the blocks.
static inline uint64_t residue(const uint8_t *p, int n) {
	uint64_t s = l64(p);
	const uint8_t *end = p + n;
	n -= 8, p += 8;
	if (n & 16) s = add1c(add1c(s, l64(p)), l64(p + 8)), p += 16;
	if (n & 8) s = add1c(s, l64(p)), p += 8;
	if (n & 7) s = add1c(s, l64(end - 8) >> (-8 * n & 63));
	for (; n >= 32; n -= 32, p += 32) s = add1c(add1c(add1c(add1c(s, l64(p)), l64(p + 8)), l64(p + 16)), l64(p + 24));
	return s % 0xffff;
}

// settle gives a new source its place. Each source of the benchmark is new once.
static __attribute__((noinline)) int settle(struct place *f, uint64_t source, uint64_t full) { f->full = full, f->source = source; return 1; }

static inline int admit4(struct responder *r, const uint8_t *h) {
	int n = __builtin_bswap16(l16(h + 16));
	if (n <= r->checksum_bytes && residue(h + 34, n - 20)) return 0;
	uint64_t source = l32(h + 26) * 0x9e3779b97f4a7c15, now = r->now << 4, ahead;
	struct place *f = &r->places[source >> 52];
	if (f->source != source) return settle(f, source, now + r->cost);
	ahead = f->full - now;
	if (ahead > r->most) f->full = now + r->cost;
	else if (ahead > r->burst) return 0;
	else f->full += r->cost;
	return 1;
}

static inline void fresh4(const struct responder *r, uint8_t *h) {
	uint32_t w = l32(h + 22);
	if (r->open || ((uint8_t)w == 64 && w < 0xffff0000)) return;
	uint32_t s = (uint16_t)~l16(h + 24) + 0xffffu - h[22] + 64;
	s = (s & 0xffff) + (s >> 16);
	h[22] = 64;
	s16(h + 24, (uint16_t)~(s + (s >> 16)));
}

static inline int answer(struct responder *r, uint8_t *h, int n) {
	uint32_t k = match(h);
	if (k == 0x01450000 && ipv4(r, h, n) && sum4(r, h) && hosts4(r, h) && echo4(h) && admit4(r, h)) {
		pong4(h);
		fresh4(r, h);
		swap4(h);
		r->answered++;
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
		doorbell(q->tdt, tail & q->mask);
		if (next - q->armed < TIDY) return tail - first;
	}
	if (q->tx_done != tail || q->armed != next) tidy(q);
	return tail - first;
}

static int batch;
static __attribute__((noinline)) int empty(struct queue *q, struct responder *r) { (void)q; (void)r; return batch; }

static uint8_t frame[64];

static void arrive(struct queue *q, struct responder *r) {
	for (int i = 0; i < batch; i++) {
		uint32_t slot = (q->rx_next + i) & MASK;
		memcpy(q->buf + slot * STRIDE, frame, sizeof frame);
		q->rx[slot].hdr = (uint64_t)sizeof frame << 32 | DD | EOP;
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

static uint16_t checksum(const uint8_t *p, int n) {
	uint32_t s = 0;
	for (int i = 0; i < n; i += 2) s += p[i] << 8 | p[i + 1];
	s = (s & 0xffff) + (s >> 16);
	return __builtin_bswap16((uint16_t)~(s + (s >> 16)));
}

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

	static const uint8_t head[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8};
	memcpy(frame, head, sizeof head);
	for (int i = 42; i < 64; i++) frame[i] = i;
	s16(frame + 24, checksum(frame + 14, 20));
	s16(frame + 36, checksum(frame + 34, 30));
	uint8_t own[8] = {0, 0, 2, 0, 0, 0, 0, 1};
	struct responder *r = &us;
	r->mac = l64(own), r->mul = 0x9e3779b1, r->checksum_bytes = 1500;
	uint32_t d = l32(frame + 30);
	r->own[d * r->mul >> 22] = d, r->not[d * r->mul >> 22] = d;
	r->cost = 16, r->burst = 1ull << 40, r->most = r->burst + r->cost, r->now = 1ull << 40;

	static const struct { const char *name; int (*poll)(struct queue *, struct responder *); } loops[] = {{"least", least}, {"guarded", guarded}, {"ported", ported}};
	static const int batches[] = {1, 32};
	for (unsigned b = 0; b < 2; b++) {
		batch = batches[b];
		double none, none_short, all, most;
		measure(count, nothing, empty, &none, &none_short);
		for (unsigned l = 0; l < 3; l++) {
			start(q);
			measure(count, arrive, loops[l].poll, &all, &most);
			printf("%s %d %.2f %.2f %.2f\n", loops[l].name, batch, all - none, most - none_short, none);
		}
	}
	return r->refused || q->bad || q->full ? 1 : 0;
}
