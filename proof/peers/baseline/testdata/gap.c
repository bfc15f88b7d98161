// A polling loop as the responder's, in C: look at the words that another may change (the producers of two rings, the
// flags of a third, the stop flag, the watch's flag), read the cycle counter, count the time since the last pass in the same buckets. Usage:
// gap CPU SECONDS; prints "index count" for each bucket and "max value" at the end.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t ticks(void) { return __rdtsc(); }
#elif defined(__aarch64__)
static inline uint64_t ticks(void) { uint64_t v; __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v)); return v; }
#endif

enum { SUBBITS = 7, SUB = 1 << SUBBITS, BUCKETS = (40 - SUBBITS + 1) * SUB };

static uint64_t count[BUCKETS], greatest, replies[BUCKETS];
static volatile sig_atomic_t stop;
static volatile uint32_t producer, completed, fill_flags, down;
static uint32_t consumer, reclaimed;

static void end(int s) { (void)s; stop = 1; }

static inline int bucket(uint64_t v) {
	int shift = 63 - __builtin_clzll(v | (2 * SUB - 1)) - SUBBITS;
	int i = (shift << SUBBITS) + (int)(v >> shift);
	return i < BUCKETS ? i : BUCKETS - 1;
}

static __attribute__((noinline)) int poll_rings(void) {
	int n = producer - consumer;
	if (n) return n;
	if (completed != reclaimed || (fill_flags & 1)) stop = 1; // never: nobody else writes them
	return 0;
}

int main(int argc, char **argv) {
	if (argc != 3) return 2;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof set, &set)) { perror("sched_setaffinity"); return 1; }
	mlockall(MCL_CURRENT | MCL_FUTURE);
	signal(SIGALRM, end);
	alarm(atoi(argv[2]));
	uint64_t t = ticks();
	while (!stop && !down) {
		int n = poll_rings();
		uint64_t now = ticks(), gap = now - t;
		count[bucket(gap)]++;
		if (gap > greatest) greatest = gap;
		if (n > 0) replies[bucket(gap)]++;
		t = now;
	}
	uint64_t gap = ticks() - t; // the one in which the end came: it may be the greatest
	count[bucket(gap)]++;
	if (gap > greatest) greatest = gap;
	for (int i = 0; i < BUCKETS; i++)
		if (count[i]) printf("%d %llu\n", i, (unsigned long long)count[i]);
	printf("max %llu\n", (unsigned long long)greatest);
	return 0;
}
