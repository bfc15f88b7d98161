//go:build ignore

// Programs that keep a core busy inside the kernel, in an XDP program or an interrupt, and record when they did.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define inlined static inline __attribute__((always_inline))

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static long (*const ringbuf_output)(void *ringbuf, void *data, u64 size, u64 flags) = (void *)130;
static long (*const bpf_loop)(u32 turns, void *turn, void *ctx, u64 flags) = (void *)181;

enum { NO_WAKEUP = 1, XDP_DROP = 1, XDP_PASS = 2 };

// until is when the pulse ends, in ns of CLOCK_MONOTONIC, and spend for how long each run keeps its core, in ns.
struct order { u64 until, spend; };

struct span { u64 start, end, cpu; };

struct {
	int (*type)[2]; // BPF_MAP_TYPE_ARRAY
	u32 *key;
	struct order *value;
	int (*max_entries)[1];
} orders SEC(".maps");

struct {
	int (*type)[27]; // BPF_MAP_TYPE_RINGBUF
	int (*max_entries)[1048576];
} spans SEC(".maps");

const struct span *unused_span __attribute__((unused)); // for bpf2go

static long over(u32 turn, u64 *end) { return ktime_get_ns() >= *end; }

inlined void spin(void)
{
	u32 first = 0;
	struct order *o = map_lookup_elem(&orders, &first);
	struct span s = {.start = ktime_get_ns(), .cpu = get_smp_processor_id()};
	if (!o || s.start >= o->until)
		return;
	u64 end = s.start + o->spend;
	bpf_loop(1 << 23, over, &end, 0);
	s.end = ktime_get_ns();
	ringbuf_output(&spans, &s, sizeof s, NO_WAKEUP);
}

SEC("xdp") int pass(void *ctx) { spin(); return XDP_PASS; }
SEC("xdp") int drop(void *ctx) { spin(); return XDP_DROP; }
SEC("perf_event") int interrupt(void *ctx) { spin(); return 0; }

char _license[] SEC("license") = "Dual MIT/GPL";
