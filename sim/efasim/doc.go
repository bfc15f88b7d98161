// Package efasim models Amazon's Elastic Fabric Adapter: PCI 1d0f:efa0 to efa3.
//
// Amazon publishes no datasheet. The model is written from the definitions that its public drivers share
// (efa_regs_defs.h, efa_admin_defs.h, efa_admin_cmds_defs.h and efa_io_defs.h of amzn-drivers, named by structure
// below), from its public description of SRD and from what those drivers do, and is compared with Linux's unmodified
// efa driver with rdma-core's provider (proof/lab). It shares nothing with nic/drivers/efa.
//
// # What there is
//
// Register reads by MMIO and by DMA response, the reset protocol with its reasons, the admin queue with optional late
// and out-of-order completions, asynchronous events with the keep-alive, all features and commands 1 to 19:
// protection domains, pages of doorbells (each UAR has its own one), address handles, memory regions with the three
// forms of page lists or physical, completion queues with entries of 16 and 32 bytes and sub-CQs,
// event queues with interrupts, queue pairs of UD and SRD. WQEs of 64 and 128 bytes pushed into LLQs, inline or with
// up to two buffers, RDMA reads and writes with and without immediate, receives of up to three buffers, statistics of
// all five kinds.
//
// # What there is not
//
// Fast registration, send queues in host memory, AQ restart, AENQ link events (the device has none), event counters, request IDs of 64
// bits and the service command, which definitions of 2026 have behind capability bits that no profile claims.
//
// # Where sources are silent
//
// The wire is the model's own (docs/efa-wire.md). Where doorbells and LLQs lie is the device's to tell; the model
// puts each UAR on its own page, behind BAR 0, BAR 2 or in BAR 4 by profile. A Q_Key that does not match is counted,
// and answered with "bad QP number" on SRD. The 40 bytes before a UD message are a pattern. A message that does not
// fit the receive is dropped, and the receive stays. An operation with local errors completes with its status, and is
// a violation too. Completions of a CQ whose doorbell the driver uses must not outrun it; one whose doorbell it never
// rang cannot be checked.
//
// # What a message costs on the bus
//
// Receive descriptors are read when the queue's cache of 64 is half empty: all new ones that lie behind one another
// and fit, in one DMA read. An inline message costs no DMA read, another one for each stretch of memory. A received
// message is one DMA write for each stretch, a completion of 16 bytes one and of 32 bytes two, since the host writes
// no more at once. A WQE counts as one MMIO write for each 64 bytes if it came through memory (a write-combining
// burst), otherwise as many writes as were made.
package efasim
