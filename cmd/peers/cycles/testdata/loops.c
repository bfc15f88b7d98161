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
//	ported    guarded, with the book-keeping of nic/ixgbe's Poll: a slot is armed when its transmit is done, in order
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

static struct rx *rx;
static struct tx *tx;
static uint8_t *buf;
static volatile uint32_t rdt, tdt;
static uint32_t rx_next, tx_tail, tx_done, armed, given;
static uint32_t pend[RING], batch_end[RING];
static uint64_t answered, refused, bad, full;
static const uint64_t iova = 1ull << 32;

static inline uint64_t l64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint32_t l32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint16_t l16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline void s64(void *p, uint64_t v) { memcpy(p, &v, 8); }
static inline void s32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void s16(void *p, uint16_t v) { memcpy(p, &v, 2); }

static __attribute__((noinline)) int slow(uint8_t *h, int n) { (void)h; (void)n; refused++; return 0; }

static inline void doorbell(volatile uint32_t *r, uint32_t v) {
	before_doorbell();
	*r = v;
}

static inline void swap4(uint8_t *h) {
	uint64_t d = l64(h), s = l64(h + 6), a = l64(h + 26);
	s64(h, (s & 0xffffffffffff) | d << 48);
	s32(h + 8, (uint32_t)(d >> 16));
	s64(h + 26, a << 32 | a >> 32);
}

static inline void pong4(uint8_t *h) {
	uint32_t w = (l32(h + 34) >> 16) + 8;
	s32(h + 34, (w + (w >> 16)) << 16);
}

// What strict knows of itself: its MAC as loaded 16 bits up, addresses by a multiplicative hash, the sources that it refuses.
static struct {
	uint64_t mac;
	uint32_t mul, own[1024], not[1024];
	int open, checksum_bytes;
	uint64_t cost, burst, most, now, full[4096];
} r;

static inline uint64_t match(const uint8_t *h) {
	uint64_t w = l64(h + 12), x = l64(h + 20);
	if ((uint16_t)w == 0x0008) return (w & 0x00ffffff) | (x & 0xff00ffbf) << 32;
	return (w & 0x00f0ffff) | (x & 0xff) << 32;
}

static inline int ipv4(const uint8_t *h, int n) {
	int l = __builtin_bswap16(l16(h + 16)) + 14;
	return l >= 42 && (l == n || (l < n && n <= 64)) &&
	       (r.open || (l64(h) << 16 == r.mac && l64(h + 6) << 16 != r.mac && !(h[6] & 1)));
}

static inline uint64_t add1c(uint64_t a, uint64_t b) { uint64_t s; return s = a + b, s + (s < b); } // end-around carry

static inline int sum4(const uint8_t *h) {
	uint64_t s = add1c(add1c(l64(h + 14), l64(h + 22)), l32(h + 30));
	return r.open || ((s >> 32) + (uint32_t)s) % 0xffff == 0;
}

static inline int hosts4(const uint8_t *h) {
	uint32_t s = l32(h + 26), d = l32(h + 30);
	return r.open || (r.own[d * r.mul >> 22] == d && r.not[s * r.mul >> 22] != s && (uint8_t)(h[26] - 1) < 223 && h[26] != 127);
}

static inline int echo4(const uint8_t *h) {
	uint32_t w = l32(h + 34);
	return (w & 0xffff) == 8 && w >> 16 != 0xfff7;
}

static inline uint64_t residue(const uint8_t *p, int n, uint64_t s) {
	for (; n >= 16; n -= 16, p += 16) s = add1c(add1c(s, l64(p)), l64(p + 8));
	if (n >= 8) s = add1c(s, l64(p)), p += 8, n -= 8;
	if (n > 0) s = add1c(s, l64(p + n - 8) >> ((64 - 8 * n) & 63));
	return ((s >> 32) + (uint32_t)s) % 0xffff;
}

static inline int admit4(const uint8_t *h) {
	int n = __builtin_bswap16(l16(h + 16));
	if (n <= r.checksum_bytes && residue(h + 34, n - 20, 0)) return 0;
	uint64_t *f = &r.full[l32(h + 26) * 0x9e3779b97f4a7c15 >> 52], now = r.now << 4, ahead = *f - now;
	if (ahead > r.most) ahead = 0;
	if (ahead > r.burst) return 0;
	*f = now + ahead + r.cost;
	return 1;
}

static inline void fresh4(uint8_t *h) {
	if (r.open) return;
	uint32_t s = (uint16_t)~l16(h + 24) + 0xffffu - h[22] + 64;
	s = (s & 0xffff) + (s >> 16);
	h[22] = 64;
	s16(h + 24, (uint16_t)~(s + (s >> 16)));
}

static inline int answer(uint8_t *h, int n) {
	uint64_t k = match(h);
	if (k == 0x0100000000450008 && ipv4(h, n) && sum4(h) && hosts4(h) && echo4(h) && admit4(h)) {
		pong4(h);
		fresh4(h);
		swap4(h);
		answered++;
		return n;
	}
	return slow(h, n);
}

static inline void send(uint32_t tail, uint32_t at, uint32_t m) {
	struct tx *t = &tx[tail & MASK];
	t->addr = iova + at;
	t->cmd = m | TX_WHOLE;
	t->status = m << 14;
}

static inline void arm(uint32_t slot) {
	rx[slot].pkt = iova + slot * STRIDE;
	rx[slot].hdr = 0;
}

// least takes each transmit for done: the least that a responder could do on these rings.
static __attribute__((noinline)) int least(void) {
	uint32_t next = rx_next, tail = tx_tail;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & MASK;
		uint64_t w = rx[slot].hdr;
		if (!(w & DD)) break;
		uint8_t *h = buf + slot * STRIDE;
		pong4(h);
		swap4(h);
		send(tail++, slot * STRIDE, (uint16_t)(w >> 32));
		arm(slot);
	}
	int n = tail - tx_tail;
	if (n) {
		doorbell(&tdt, tail & MASK);
		tx_done = tx_tail = tail;
		if (next - given >= REFILL) given = next, doorbell(&rdt, (next - 1) & MASK);
	}
	rx_next = armed = next;
	return n;
}

static __attribute__((noinline)) int guarded(void) {
	uint32_t next = rx_next, tail = tx_tail;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & MASK;
		uint64_t w = rx[slot].hdr;
		if (!(w & DD)) break;
		int n = (uint16_t)(w >> 32);
		if ((w & (EOP | RXE)) != EOP || (unsigned)(n - 14) > BUF - 14) {
			bad++;
		} else {
			int m = answer(buf + slot * STRIDE, n);
			if (m) send(tail++, slot * STRIDE, m);
		}
		arm(slot);
	}
	int n = tail - tx_tail;
	if (n) {
		doorbell(&tdt, tail & MASK);
		tx_done = tx_tail = tail;
		if (next - given >= REFILL) given = next, doorbell(&rdt, (next - 1) & MASK);
	}
	rx_next = armed = next;
	return n;
}

static __attribute__((noinline)) void tidy(void) {
	uint32_t done = tx_done;
	while (done != tx_tail) {
		uint32_t end = batch_end[done & MASK];
		if (!(tx[(end - 1) & MASK].status & DD)) break;
		done = end;
	}
	tx_done = done;
	for (; armed != rx_next; armed++) {
		uint32_t slot = armed & MASK;
		if ((int32_t)(done - pend[slot]) < 0) break;
		arm(slot);
	}
	if (armed - given >= REFILL) given = armed, doorbell(&rdt, (armed - 1) & MASK);
}

static __attribute__((noinline)) int ported(void) {
	uint32_t next = rx_next, first = tx_tail, tail = first;
	for (uint32_t end = next + BATCH; next != end; next++) {
		uint32_t slot = next & MASK, release = tx_done;
		uint64_t w = rx[slot].hdr;
		if (!(w & DD)) break;
		int n = (uint16_t)(w >> 32);
		if ((w & (EOP | RXE)) != EOP || (unsigned)(n - 14) > BUF - 14) {
			bad++;
		} else {
			int m = answer(buf + slot * STRIDE, n);
			if (m && tail - tx_done == MASK) {
				full++;
			} else if (m) {
				send(tail++, slot * STRIDE, m);
				release = tail;
			}
		}
		pend[slot] = release;
	}
	rx_next = next;
	if (tail != first) {
		tx[(tail - 1) & MASK].cmd |= TX_RS;
		batch_end[first & MASK] = tail;
		tx_tail = tail;
		doorbell(&tdt, tail & MASK);
		if (next - armed < TIDY) return tail - first;
	}
	if (tx_done != tail || armed != next) tidy();
	return tail - first;
}

static int batch;
static __attribute__((noinline)) int empty(void) { return batch; }

static uint8_t frame[64];

static void arrive(void) {
	for (int i = 0; i < batch; i++) {
		uint32_t slot = (rx_next + i) & MASK;
		memcpy(buf + slot * STRIDE, frame, sizeof frame);
		rx[slot].hdr = (uint64_t)sizeof frame << 32 | DD | EOP;
	}
	for (uint32_t n = tx_done; n != tx_tail; n++)
		if (tx[n & MASK].cmd & TX_RS) tx[n & MASK].status |= DD;
	r.now += 1000;
}

static void nothing(void) {}

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

static void measure(int count, void (*device)(void), int (*poll)(void), double *all, double *most) {
	for (int g = 0; g < count; g++)
		for (int p = 0; p < PASSES; p++) {
			device();
			__sync_synchronize(); // a device's writes come from memory, not from this core's store buffer
			uint64_t t = fenced();
			int n = poll();
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

static void start(void) {
	rx_next = tx_tail = tx_done = armed = given = 0;
	memset(pend, 0, sizeof pend);
	memset(tx, 0, RING * sizeof *tx);
	for (uint32_t s = 0; s < RING; s++) arm(s);
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
	rx = (struct rx *)mem, tx = (struct tx *)(mem + RING * 16), buf = mem + RING * 32;

	static const uint8_t head[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8};
	memcpy(frame, head, sizeof head);
	for (int i = 42; i < 64; i++) frame[i] = i;
	s16(frame + 24, checksum(frame + 14, 20));
	s16(frame + 36, checksum(frame + 34, 30));
	uint8_t own[8] = {0, 0, 2, 0, 0, 0, 0, 1};
	r.mac = l64(own), r.mul = 0x9e3779b1, r.checksum_bytes = 1500;
	uint32_t d = l32(frame + 30);
	r.own[d * r.mul >> 22] = d, r.not[d * r.mul >> 22] = d;
	r.cost = 16, r.burst = 1ull << 40, r.most = r.burst + r.cost, r.now = 1ull << 40;

	static const struct { const char *name; int (*poll)(void); } loops[] = {{"least", least}, {"guarded", guarded}, {"ported", ported}};
	static const int batches[] = {1, 32};
	for (unsigned b = 0; b < 2; b++) {
		batch = batches[b];
		double none, none_short, all, most;
		measure(count, nothing, empty, &none, &none_short);
		for (unsigned l = 0; l < 3; l++) {
			start();
			measure(count, arrive, loops[l].poll, &all, &most);
			printf("%s %d %.2f %.2f %.2f\n", loops[l].name, batch, all - none, most - none_short, none);
		}
	}
	return refused || bad || full ? 1 : 0;
}
