// The least that answers ICMP echo requests over a socket of the kernel's: poll, swap the addresses, make type 8 a 0 and
// mend the checksum, send. Nothing is checked, counted or guarded, so that what is left of the round trip is the kernel's.
// ARP is answered too, for any address, since else nobody would ask. Usage: floor
// afxdp|afxdp-generic|afpacket INTERFACE CPU [MAC]; prints "ready" once it answers, and runs until it is killed. MAC is what
// afpacket answers from in place of the interface's own.
//
// afxdp is copy mode with need_wakeup and 2048 chunks, and a program at the driver's hook that redirects all frames;
// afxdp-generic the same at the generic hook; afpacket is TPACKET_V2 with 2048 slots, sending past the queueing discipline.
// The responder's sockets are like that.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK = 2048, CHUNKS = 2048, SLOT = 2048, SLOTS = 2048, BLOCK = 1 << 16 };

static unsigned char mac[6];

// must ends the program with the name of the call that failed.
#define must(call) ({ long must_ = (long)(call); if (must_ == -1) { perror(#call); exit(1); } must_; })

static inline uint32_t load(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

// arp makes an ARP request (RFC 826) the reply to it.
static __attribute__((noinline)) int arp(unsigned char *f, int n) {
	unsigned char asker[10];
	if (f[21] != 1) return 0;
	f[21] = 2;
	memcpy(asker, f + 22, 10);
	memcpy(f + 22, mac, 6);
	memcpy(f + 28, f + 38, 4);
	memcpy(f + 32, asker, 10);
	memcpy(f, asker, 6);
	memcpy(f + 6, mac, 6);
	return n;
}

// answer makes a request the reply to it, where it lies, and returns its length, 0 for what is no request.
static inline int answer(unsigned char *f, int n) {
	unsigned char m[6], a[4];
	uint16_t sum;
	if (f[12] == 8 && f[13] == 6) return arp(f, n);
	if (f[34] != 8) return 0;
	memcpy(m, f, 6);
	memcpy(f, f + 6, 6);
	memcpy(f + 6, m, 6);
	memcpy(a, f + 26, 4);
	memcpy(f + 26, f + 30, 4);
	memcpy(f + 30, a, 4);
	f[34] = 0;
	memcpy(&sum, f + 36, 2);
	uint32_t t = sum + htons(0x0800); // RFC 1624: the word loses 0x0800, its complement gains it
	sum = t + (t >> 16);
	memcpy(f + 36, &sum, 2);
	return n;
}

static void afpacket(int ifindex) {
	int fd = must(socket(AF_PACKET, SOCK_RAW, 0)), version = TPACKET_V2, one = 1;
	must(setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version));
	must(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one));
	must(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one));
	struct packet_mreq own = {.mr_ifindex = ifindex, .mr_type = PACKET_MR_UNICAST, .mr_alen = sizeof mac};
	memcpy(own.mr_address, mac, sizeof mac);
	must(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &own, sizeof own));
	struct tpacket_req req = {.tp_block_size = BLOCK, .tp_block_nr = SLOTS * SLOT / BLOCK, .tp_frame_size = SLOT, .tp_frame_nr = SLOTS};
	must(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof req));
	unsigned char *ring = (void *)must(mmap(0, SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
	struct sockaddr_ll all = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};
	must(bind(fd, (struct sockaddr *)&all, sizeof all));
	puts("ready");
	fflush(stdout);
	for (unsigned i = 0;; i = (i + 1) % SLOTS) {
		struct tpacket2_hdr *h = (void *)(ring + (size_t)i * SLOT);
		while (!(load(&h->tp_status) & TP_STATUS_USER)) {}
		unsigned char *f = (unsigned char *)h + h->tp_mac;
		int n = answer(f, h->tp_snaplen);
		if (n) sendto(fd, f, n, MSG_DONTWAIT, 0, 0);
		store(&h->tp_status, TP_STATUS_KERNEL);
	}
}

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *entries; // CHUNKS of them
};

static struct ring ring(int fd, struct xdp_ring_offset o, size_t entry, off_t page) {
	char *m = (void *)must(mmap(0, o.desc + CHUNKS * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page));
	return (struct ring){(void *)(m + o.producer), (void *)(m + o.consumer), (void *)(m + o.flags), m + o.desc};
}

static inline uint64_t *address(struct ring *r, uint32_t i) { return (uint64_t *)r->entries + i % CHUNKS; }
static inline struct xdp_desc *desc(struct ring *r, uint32_t i) { return (struct xdp_desc *)r->entries + i % CHUNKS; }

static int bpf(int command, union bpf_attr a) { return syscall(SYS_bpf, command, &a, sizeof a); }

// redirect attaches the program that gives the socket all frames, for as long as this process lives.
static void redirect(int ifindex, int fd, int hook) {
	uint32_t queue = 0;
	int map = must(bpf(BPF_MAP_CREATE, (union bpf_attr){.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1}));
	must(bpf(BPF_MAP_UPDATE_ELEM, (union bpf_attr){.map_fd = map, .key = (uintptr_t)&queue, .value = (uintptr_t)&fd}));
	struct bpf_insn code[] = { // return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)
		{.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_1, .off = offsetof(struct xdp_md, rx_queue_index)},
		{.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map},
		{0},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_PASS},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
		{.code = BPF_JMP | BPF_EXIT},
	};
	int program = must(bpf(BPF_PROG_LOAD, (union bpf_attr){.prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
		.insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t)"Apache-2.0"}));
	must(bpf(BPF_LINK_CREATE, (union bpf_attr){.link_create = {.prog_fd = program, .target_ifindex = ifindex, .attach_type = BPF_XDP,
		.flags = hook}}));
}

static void afxdp(int ifindex, int hook) {
	int fd = must(socket(AF_XDP, SOCK_RAW, 0)), entries = CHUNKS;
	unsigned char *umem = (void *)must(mmap(0, CHUNKS * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
	struct xdp_umem_reg reg = {.addr = (uintptr_t)umem, .len = CHUNKS * CHUNK, .chunk_size = CHUNK};
	must(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof reg));
	must(setsockopt(fd, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof entries));
	must(setsockopt(fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries));
	must(setsockopt(fd, SOL_XDP, XDP_RX_RING, &entries, sizeof entries));
	must(setsockopt(fd, SOL_XDP, XDP_TX_RING, &entries, sizeof entries));
	struct xdp_mmap_offsets off;
	socklen_t len = sizeof off;
	must(getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &off, &len));
	struct ring rx = ring(fd, off.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING), tx = ring(fd, off.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING),
		fill = ring(fd, off.fr, 8, XDP_UMEM_PGOFF_FILL_RING), done = ring(fd, off.cr, 8, XDP_UMEM_PGOFF_COMPLETION_RING);
	for (int i = 0; i < CHUNKS; i++) *address(&fill, i) = (uint64_t)i * CHUNK;
	store(fill.producer, CHUNKS);
	struct sockaddr_xdp at = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP, .sxdp_ifindex = ifindex};
	while (bind(fd, (struct sockaddr *)&at, sizeof at)) { // the kernel lets go of another's closed socket only later
		if (errno != EBUSY) must(-1);
		usleep(1000);
	}
	redirect(ifindex, fd, hook);
	puts("ready");
	fflush(stdout);
	for (uint32_t received = 0, sent = 0, filled = CHUNKS, reclaimed = 0;;) {
		if (load(rx.producer) == received) {
			if (load(fill.flags) & XDP_RING_NEED_WAKEUP) recvfrom(fd, 0, 0, MSG_DONTWAIT, 0, 0);
			continue;
		}
		struct xdp_desc d = *desc(&rx, received++);
		if (answer(umem + d.addr, d.len)) {
			*desc(&tx, sent++) = (struct xdp_desc){.addr = d.addr, .len = d.len};
			store(tx.producer, sent);
			if (load(tx.flags) & XDP_RING_NEED_WAKEUP)
				while (sendto(fd, 0, 0, MSG_DONTWAIT, 0, 0) && errno == EAGAIN) {}
		} else
			*address(&fill, filled++) = d.addr;
		store(rx.consumer, received);
		for (uint32_t end = load(done.producer); reclaimed != end;) *address(&fill, filled++) = *address(&done, reclaimed++);
		store(done.consumer, reclaimed);
		store(fill.producer, filled);
	}
}

int main(int argc, char **argv) {
	if (argc != 4 && argc != 5) return 2;
	int ifindex = if_nametoindex(argv[2]), any = must(socket(AF_INET, SOCK_DGRAM, 0));
	struct ifreq hardware = {0};
	strncpy(hardware.ifr_name, argv[2], IFNAMSIZ - 1);
	must(ioctl(any, SIOCGIFHWADDR, &hardware));
	memcpy(mac, hardware.ifr_hwaddr.sa_data, sizeof mac);
	if (argc == 5 && sscanf(argv[4], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6) return 2;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[3]), &set);
	must(sched_setaffinity(0, sizeof set, &set));
	must(mlockall(MCL_CURRENT | MCL_FUTURE));
	if (strcmp(argv[1], "afxdp") == 0) afxdp(ifindex, XDP_FLAGS_DRV_MODE);
	if (strcmp(argv[1], "afxdp-generic") == 0) afxdp(ifindex, XDP_FLAGS_SKB_MODE);
	if (strcmp(argv[1], "afpacket") == 0) afpacket(ifindex);
	return 2;
}
