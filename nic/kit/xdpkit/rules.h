// What the XDP programs of Rebound share: nic/drivers/xdp's, which answers, and nic/drivers/afxdp's, which picks what a socket answers. Who we
// are and how a frame is read is said here once, as package fastpath has it; the constants are set before a program is loaded.
// Bytes are handled as a little-endian machine loads them: a sum of swapped words is the swapped sum (RFC 1071).
//
// It needs no other header: what it takes from the kernel's interface is declared here.

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
#define global __attribute__((noinline)) // the verifier walks it once, for any arguments
#define keep(v) asm volatile("" : "+r"(v))
#define likely(c) __builtin_expect(!!(c), 1)
#define unlikely(c) __builtin_expect(!!(c), 0)

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static long (*const xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*const xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;
static u64 (*const xdp_get_buff_len)(struct xdp_md *ctx) = (void *)188;
static long (*const xdp_load_bytes)(struct xdp_md *ctx, u32 offset, void *to, u32 length) = (void *)189;
static u64 (*const ktime_get_tai_ns)(void) = (void *)208;

// Functions of the kernel that a program bound to one interface may call, and whose driver implements them
// (Documentation/networking/xdp-rx-metadata.rst). 0 is success.
extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, u64 *timestamp) __attribute__((section(".ksyms")));
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, u16 *proto, u16 *tci) __attribute__((section(".ksyms")));

enum {
	MAX_ADDRESSES = 32, // fastpath.MaxAddresses
	HEADER = 14,        // of Ethernet
};

struct in6 {
	u64 hi, lo;
};

// Who we are.
struct identity {
	u32 own4_count, own6_count;
};

const volatile struct identity us;
const volatile u32 own4[MAX_ADDRESSES];
const volatile struct in6 own6[MAX_ADDRESSES];

// Our MAC, with its first byte lowest. It is not a constant: the process changes it with the interface's, in one store.
volatile u64 our_mac;

inlined u16 swap16(u16 v) { return v << 8 | v >> 8; }
inlined u16 get16(const void *p) { return *(const u16 *)p; }
inlined u32 get32(const void *p) { return *(const u32 *)p; }
inlined u64 get64(const void *p) { return *(const u64 *)p; }
inlined u16 be16(const void *p) { return swap16(get16(p)); }
inlined void put16(void *p, u16 v) { *(u16 *)p = v; }
inlined void put32(void *p, u32 v) { *(u32 *)p = v; }

inlined void put_our_mac(u8 *m)
{
	u64 mac = our_mac;
	put32(m, mac);
	put16(m + 4, mac >> 32);
}

// has reports whether set has v, a port as it is loaded or a VLAN.
inlined int has(const volatile u64 *set, u16 v) { return set[v >> 6] >> (v & 63) & 1; }

inlined int ours4(u32 a)
{
	for (u32 i = 0; i < MAX_ADDRESSES && i < us.own4_count; i++)
		if (own4[i] == a)
			return 1;
	return 0;
}

inlined int ours6(u64 hi, u64 lo)
{
	for (u32 i = 0; i < MAX_ADDRESSES && i < us.own6_count; i++)
		if (own6[i].lo == lo && own6[i].hi == hi)
			return 1;
	return 0;
}

inlined int is_our_mac(const u8 *m) { return ((u64)get16(m + 4) << 32 | get32(m)) == our_mac; }
inlined int is_broadcast(const u8 *m) { return get32(m) == 0xffffffff && get16(m + 4) == 0xffff; }
inlined int is_tag(u16 type) { return type == 0x0081 || type == 0xa888; } // as loaded: IEEE 802.1Q, 802.1ad

// push_tag puts the tag that the interface took out of the frame back, behind the addresses.
inlined int push_tag(struct xdp_md *ctx, u16 proto, u16 tci)
{
	if (xdp_adjust_head(ctx, -4))
		return 0;
	u8 *f = (u8 *)(long)ctx->data;
	if (f + HEADER + 4 > (u8 *)(long)ctx->data_end)
		return 0;
	put32(f, get32(f + 4));
	put32(f + 4, get32(f + 8));
	put32(f + 8, get32(f + 12));
	put16(f + 12, proto);
	put16(f + 14, swap16(tci));
	return 1;
}
