// Package efasim models Amazon's Elastic Fabric Adapter: PCI 1d0f:efa0 to efa3.
//
// Amazon publishes no datasheet. The model is written from the definitions that its public drivers share
// (efa_regs_defs.h, efa_admin_defs.h, efa_admin_cmds_defs.h and efa_io_defs.h of amzn-drivers; comments name the
// structures), from its public description of SRD, and from the behaviour of those drivers. It is compared with Linux's
// unmodified efa driver and rdma-core's provider (proof/lab). It shares no code with nic/drivers/efa.
//
// # Implemented
//
// Register reads by MMIO and by DMA response, the reset protocol with its reasons, the admin queue with optional late
// and out-of-order completions, asynchronous events with the keep-alive, all features, and commands 1 to 19: protection
// domains, doorbell pages (one per UAR), address handles, memory regions with the three forms of page lists or
// physical, completion queues with entries of 16 and 32 bytes and sub-CQs, event queues with interrupts, and queue
// pairs of UD and SRD. WQEs of 64 and 128 bytes pushed into LLQs, inline or with up to two buffers, RDMA reads and
// writes with and without immediate, receives of up to three buffers, and statistics of all five kinds.
//
// # Not implemented
//
// Fast registration, send queues in host memory, AQ restart, AENQ link events (the device has none), event counters,
// request IDs of 64 bits and the service command. The definitions of 2026 put these behind capability bits that no
// profile claims. Settings without an effect are accepted with a warning.
//
// # Choices where sources are silent
//
// The wire format is the model's own (docs/cards/simnic.md). The device defines where doorbells and LLQs are; the model
// puts each UAR on its own page, in BAR 0, BAR 2 or BAR 4 by profile. A Q_Key that does not match is counted, and
// answered with "bad QP number" on SRD. The 40 bytes before a UD message are a pattern. A message that does not fit the
// receive is dropped, and the receive stays posted. An operation with local errors completes with its status and is a
// violation too. Completions must not overrun a CQ whose doorbell the driver uses. A CQ whose doorbell was never rung
// cannot be checked.
//
// # Cost of a message on the bus
//
// Receive descriptors are read when the queue's cache of 64 is half empty: all new ones that are adjacent and fit, in
// one DMA read. An inline message costs no DMA read, any other message one per contiguous piece of memory. A received
// message costs one DMA write per contiguous piece. A completion of 16 bytes costs one, a completion of 32 bytes two,
// because the host writes no more at once. A WQE counts as one MMIO write per 64 bytes if it arrived through memory (a
// write-combining burst), otherwise as the number of writes made.
package efasim
