//go:build ignore

// Programs on the kernel's tracepoints that report what has a core instead of the polling thread. Each returns at once on a core
// without one. They read arguments of tracepoints and what helpers return, never a structure of the kernel, so that they need neither
// its types nor offsets: in sched_switch, the current task is the one that leaves.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define inlined static inline __attribute__((always_inline))

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static u64 (*const get_current_pid_tgid)(void) = (void *)14;
static long (*const get_current_comm)(void *to, u32 size) = (void *)16;
static u64 (*const get_current_task)(void) = (void *)35;
static long (*const probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const get_ns_current_pid_tgid)(u64 dev, u64 ino, void *to, u32 size) = (void *)120;
static void *(*const ringbuf_reserve)(void *ringbuf, u64 size, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *data, u64 flags) = (void *)132;

enum { NO_WAKEUP = 1 }; // BPF_RB_NO_WAKEUP: the reader looks by itself, and a wakeup would interrupt the polling core

enum kind { RUN = 1, OFF, IRQ, SOFTIRQ, TIMER, RESCHEDULE, CALL, WORK, IPI, NMI };

// Set before the programs are loaded.
const volatile u64 threshold;    // ns: of an interval in which the polling thread does not run
const volatile u64 piece;        // ns: of one cause of such an interval
const volatile u64 ns_dev, ns_ino; // the reader's PID namespace
const volatile u8 state_argument;  // sched_switch has the state as an argument (Linux 5.18)
const volatile u32 state_offset;   // of the state in struct task_struct, from the kernel's types; 0 for unknown
const volatile u8 state_long;      // it is a long (up to Linux 5.13)

// core is the state of a core that has a polling thread. Only programs on this core write it, except for tid and runnable.
struct core {
	u32 tid; // written by the reader; 0 for none
	u32 state;
	u64 task;     // the thread's address, which identifies it; 0 until it is known
	u64 off;      // when the thread lost the core; 0 while it has it
	u64 since;    // when the present task got the core
	u64 runnable; // when the thread could run again; 0 if it cannot
	u64 hard, soft, nested;
	u32 irq, vec;
	u64 lost; // events for which the ring had no space
	u64 unused[5];
};

struct event {
	u64 start, end, runnable, nested;
	u32 kind, cpu, detail, pid;
	u8 comm[16];
};

struct {
	int (*type)[2]; // BPF_MAP_TYPE_ARRAY
	int (*map_flags)[1024]; // BPF_F_MMAPABLE
	u32 *key;
	struct core *value;
	int (*max_entries)[1]; // set to the number of CPUs
} cores SEC(".maps");

struct {
	int (*type)[1]; // BPF_MAP_TYPE_HASH
	u64 *key; // a polling thread that cannot run
	u32 *value; // its CPU
	int (*max_entries)[1024];
} sleeping SEC(".maps");

struct {
	int (*type)[27]; // BPF_MAP_TYPE_RINGBUF
	int (*max_entries)[1048576];
} events SEC(".maps");

const struct event *unused_event __attribute__((unused)); // for bpf2go

inlined struct core *watched(void)
{
	u32 cpu = get_smp_processor_id();
	struct core *c = map_lookup_elem(&cores, &cpu);
	return c && c->tid ? c : 0;
}

// polls reports whether the current task is the polling thread, and remembers it.
inlined int polls(struct core *c)
{
	if (c->task)
		return c->task == get_current_task();
	struct { u32 pid, tgid; } ids = {};
	if (get_ns_current_pid_tgid(ns_dev, ns_ino, &ids, sizeof ids) || ids.pid != c->tid)
		return 0;
	c->task = get_current_task();
	return 1;
}

inlined void report(struct core *c, u32 kind, u32 detail, u64 start, u64 end, int names)
{
	struct event *e = ringbuf_reserve(&events, sizeof *e, 0);
	if (!e) {
		c->lost++;
		return;
	}
	e->start = start;
	e->end = end;
	e->runnable = kind == OFF ? c->runnable : 0;
	e->nested = kind == SOFTIRQ ? c->nested : 0;
	e->kind = kind;
	e->cpu = get_smp_processor_id();
	e->detail = detail;
	e->pid = 0;
	if (names) {
		e->pid = get_current_pid_tgid();
		get_current_comm(e->comm, sizeof e->comm);
	}
	ringbuf_submit(e, NO_WAKEUP);
}

inlined u32 state_of(u64 *ctx)
{
	if (state_argument)
		return ctx[3];
	u64 state = 0;
	if (state_offset)
		probe_read_kernel(&state, state_long ? 8 : 4, (void *)ctx[1] + state_offset);
	return state;
}

SEC("raw_tracepoint/sched_switch")
int sched_switch(u64 *ctx)
{
	struct core *c = watched();
	if (!c)
		return 0;
	u64 now = ktime_get_ns();
	c->hard = c->soft = 0;
	if (polls(c)) {
		c->state = ctx[0] ? 0 : state_of(ctx); // preempted: it could run, whatever it was about to do
		c->runnable = c->state ? 0 : now;
		c->off = c->since = now;
		if (c->state) {
			u32 cpu = get_smp_processor_id();
			u64 task = c->task;
			map_update_elem(&sleeping, &task, &cpu, 0);
		}
		return 0;
	}
	if (!c->off)
		return 0;
	if (now - c->since >= piece)
		report(c, RUN, 0, c->since, now, 1);
	c->since = now;
	if (ctx[2] == c->task) {
		if (now - c->off >= threshold)
			report(c, OFF, c->state, c->off, now, 0);
		if (c->state) {
			u64 task = c->task;
			map_delete_elem(&sleeping, &task);
		}
		c->off = 0;
	}
	return 0;
}

SEC("raw_tracepoint/sched_wakeup")
int sched_wakeup(u64 *ctx)
{
	u64 task = ctx[0];
	u32 *cpu = map_lookup_elem(&sleeping, &task);
	if (!cpu)
		return 0;
	struct core *c = map_lookup_elem(&cores, cpu);
	if (c && c->task == task && c->off && !c->runnable)
		c->runnable = ktime_get_ns();
	return 0;
}

inlined int enter(u32 kind, u32 detail)
{
	struct core *c = watched();
	if (!c || c->off || !polls(c))
		return 0;
	if (kind == SOFTIRQ) {
		c->soft = ktime_get_ns();
		c->vec = detail;
		c->nested = 0;
	} else {
		c->hard = ktime_get_ns();
		c->irq = detail;
	}
	return 0;
}

inlined int leave(u32 kind)
{
	struct core *c = watched();
	if (!c)
		return 0;
	u64 start = kind == SOFTIRQ ? c->soft : c->hard;
	if (!start)
		return 0;
	u64 now = ktime_get_ns();
	if (now - start >= piece)
		report(c, kind, kind == SOFTIRQ ? c->vec : c->irq, start, now, 0);
	if (kind == SOFTIRQ) {
		c->soft = 0;
	} else {
		c->hard = 0;
		if (c->soft)
			c->nested += now - start;
	}
	return 0;
}

#define PAIR(name, before, after, kind, detail) \
	SEC("raw_tracepoint/" #before) int name##_entry(u64 *ctx) { return enter(kind, detail); } \
	SEC("raw_tracepoint/" #after) int name##_exit(u64 *ctx) { return leave(kind); }

PAIR(irq, irq_handler_entry, irq_handler_exit, IRQ, ctx[0])
PAIR(softirq, softirq_entry, softirq_exit, SOFTIRQ, ctx[0])
// x86 has tracepoints for each of its system vectors, arm64 one for all IPIs.
PAIR(timer, local_timer_entry, local_timer_exit, TIMER, 0)
PAIR(reschedule, reschedule_entry, reschedule_exit, RESCHEDULE, 0)
PAIR(call, call_function_entry, call_function_exit, CALL, 0)
PAIR(call_single, call_function_single_entry, call_function_single_exit, CALL, 0)
PAIR(work, irq_work_entry, irq_work_exit, WORK, 0)
PAIR(ipi, ipi_entry, ipi_exit, IPI, 0)

// The kernel measures NMI handlers itself: arguments are the handler, its duration in ns, and the number of events.
SEC("raw_tracepoint/nmi_handler")
int nmi(u64 *ctx)
{
	struct core *c = watched();
	if (!c || c->off || ctx[1] < piece)
		return 0;
	u64 now = ktime_get_ns();
	report(c, NMI, 0, now - ctx[1], now, 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
