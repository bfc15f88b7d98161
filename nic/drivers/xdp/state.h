// The program's settings, its counters, and its state for a frame.

// Verdicts, in fastpath's order.
enum verdict {
	ANSWERED_ICMPV4, ANSWERED_UDPV4, ANSWERED_ICMPV6, ANSWERED_UDPV6, ANSWERED_ARP, ANSWERED_ND, ANSWERED_STAMPV4, ANSWERED_STAMPV6,
	SHORT, VLAN, ETHERTYPE, MAC, SOURCE_MAC, VERSION, OPTIONS, FRAGMENT, EXTENSION, LENGTH, HEADER_CHECKSUM, ADDRESS, SOURCE,
	OWN_SOURCE, PROTOCOL, ICMP_TYPE, PORT, SERVICE_PORT, HOP_LIMIT, NO_CHECKSUM, STAMP_SHORT, CHECKSUM, LOOP, RATE, ARP_OTHER,
	ARP_ANNOUNCEMENT, ND_INVALID,
	VERDICTS,
};

#define ANSWERED(v) ((v) <= ANSWERED_STAMPV6)

// What a guard refused is dropped: the kernel may own the address, and would answer where the guard said no. All else goes on
// to the kernel, and so do ARP and ND, by which it finds that somebody else has its address.
#define GUARDED \
	(1ULL << SOURCE_MAC | 1ULL << HEADER_CHECKSUM | 1ULL << SOURCE | 1ULL << OWN_SOURCE | 1ULL << SERVICE_PORT | 1ULL << HOP_LIMIT | \
	 1ULL << NO_CHECKSUM | 1ULL << STAMP_SHORT | 1ULL << CHECKSUM | 1ULL << LOOP | 1ULL << RATE)

enum {
	MAX_FRAME = 9728, // a jumbo frame, with room to spare
	LONGEST = 1 << 14, // above MAX_FRAME: a mask keeps a bound that the verifier loses after a comparison
	MAX_SOLICITATION = 4096, // more options than that, 500, are not looked through
	HOPS = 64,
	STAMP_LENGTH = 41, // fastpath's stampLength, stampSender and stampBase
	STAMP_SENDER = 14,
	STAMP_BASE = 44,
	SLOTS = 4096, // fastpath's slots, limiterWays and patience
	WAYS = 8,
	PATIENCE = 4,
	SUB_BITS = 7, // polling's
	BUCKETS = (40 - SUB_BITS + 1) << SUB_BITS,
};

// Set before the program is loaded.
struct rule_set {
	u8 open;
	u8 partial;
	u8 stamp;      // there are STAMP ports
	u8 stamp_base; // fastpath.Config.STAMPBase
	u8 frags;      // a frame may lie in several buffers: data_end is the first one's
	u8 stepped;    // tests: the limit's time is what the test wrote to cpu_counts' now
	u8 tag;        // the interface's driver tells the tag that it took out of a frame
	u8 stamps;     // and this, the time at which a frame came: only a program bound to the interface may ask, at the driver's own hook
	u32 checksum_bytes;
	u32 not4_count;
	u32 loop;                    // equal datagrams that are answered within window ns, 0: any number
	u32 window;
	u64 cost, burst, most, idle; // of the limit, in 1/16 ns
	u64 still;                   // tests: the time of all test packets
};

const volatile struct rule_set rules;
const volatile u32 not4[3 * MAX_ADDRESSES];
const volatile u64 vlans[4096 / 64];
const volatile u64 echo_ports[65536 / 64]; // by ports as they are loaded
const volatile u64 stamp_ports[65536 / 64];
const volatile u64 service_ports[65536 / 64];

struct histogram {
	u64 greatest; // ns
	u64 counts[BUCKETS];
};

// The place of one source in the limit: when its bucket will be full, and its hash, 0 where the place is free.
struct place {
	u64 full, source;
};

// Equal datagrams from one source: when the first of count arrived, and their length and checksum, as fastpath's repeat.
struct repeat {
	u64 began;
	u32 key, count;
};

// What one CPU counts. Softirqs do not nest on a CPU: each has one writer. The size is a multiple of a cache line, so that no two
// CPUs write to one.
struct cpu_counts {
	u64 verdicts[64];
	struct place places[SLOTS];
	struct repeat repeats[SLOTS];
	u64 begun[SLOTS];         // when the place's source took it
	u64 shared[SLOTS / WAYS]; // when the bucket of those without a place will be full
	u64 rx_bytes, tx_bytes;
	u64 dice;                    // which frames are timed
	u64 now;                     // the last look at the clock
	struct histogram turnaround; // of replies that are timed, from the program's start to its end
	struct histogram delivery;   // of the same, where the device stamped the frame: from its stamp to the program's start
	u64 unused[2];
};
_Static_assert(sizeof(struct cpu_counts) % 64 == 0, "a CPU's counts end in the middle of a cache line");

// How the clocks that the program can read relate to what a STAMP packet says.
struct clock {
	u64 offset; // TAI - UTC, in seconds, as the kernel has it
	u64 error_estimate;
	u64 device_at, device_tai, device_rate; // at device_at the device's clock stood, by the kernel's TAI, at device_tai; TAI's ns for each of it, 32 bits of fraction, 0 if unknown
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
	u64 start;  // by the monotonic clock, 0 if the frame is not timed
	u64 device; // when its device received it, by the device's clock; 0 if unknown
	u32 length; // of the frame, without a trailer
	u32 l3;     // where the packet starts: 14, 18 or 22
	u32 grows;  // a test packet shorter than its reply: the length of its datagram, which starts at at, else 0
	u32 at;
	u8 hops;    // it came with
};

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

inlined void record(struct histogram *h, u64 v)
{
	u32 b = v;
	if (unlikely(v >= 2 << SUB_BITS))
		b = bucket(v);
	if (b < BUCKETS)
		h->counts[b]++;
	if (unlikely(v > h->greatest))
		h->greatest = v;
}
