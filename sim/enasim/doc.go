// Package enasim models Amazon's Elastic Network Adapter: PCI 1d0f:0ec2, 1ec2, ec20 or ec21, as it appears on Nitro
// instances.
//
// Amazon publishes no datasheet. The model is written from the definitions that its public drivers share
// (ena_regs_defs.h, ena_admin_defs.h and ena_eth_io_defs.h of amzn-drivers, named by structure below) and from what
// those drivers do, and is compared with Linux's unmodified ena driver (proof/lab). It shares nothing with
// nic/drivers/ena.
//
// # What there is
//
// Register reads by MMIO and by DMA response, the reset protocol with its reasons, the admin queue with optional late
// and out-of-order completions, asynchronous events with the keep-alive, the features that Linux requests (device
// attributes, queue limits in both forms, hints, LLQ, events, host attributes, MTU, link, RSS with Toeplitz and
// CRC32, offloads, interrupt moderation), statistics (basic, ENI, customer metrics), completion and submission queues
// with descriptors in host memory or pushed (LLQ, entries of 128 and 256 bytes, limits of accelerated LLQ), checksum
// insertion from a partial sum, checksum results and hash on receive, frames over several buffers, interrupts with
// moderation.
//
// # What there is not
//
// As on EC2, no segmentation offload is advertised. Options have what differs between instances: BARs, LLQ, receive
// checks. Nor are the PTP clock, hardware time stamps, SRD statistics and extra properties. The LLQ header location
// "header ring", the head write-back completion policies, AQ restart and quiescence are refused with a violation.
// Sorted hash input is not advertised, and the sort bits that all public drivers set are ignored.
//
// # Where sources are silent
//
// A submission queue may be full to its depth. A completion queue has no head doorbell on current devices, so that it
// must be as deep as the submission queues on it. The burst limit is checked for doorbells that are trapped, as
// QEMU's are. An LLQ entry must be pushed whole, as all public drivers do: the model fills entries that it has
// consumed with a pattern and refuses one that shows it. CRC32 is the reflected IEEE one over the fields in
// Toeplitz's order, started with the initial value.
//
// # What a frame costs on the bus
//
// Receive descriptors are read when the device's cache of 64 is half empty: all new ones that lie behind one another
// and fit, in one DMA read; transmit descriptors in host memory on each doorbell, up to 16 in one read. A payload is
// one DMA read or write for each buffer, a completion one DMA write. A frame pushed whole into an LLQ costs no DMA
// read. An LLQ entry counts as one MMIO write for each 64 bytes if it came through memory (a write-combining burst),
// otherwise as many writes as were made.
package enasim
