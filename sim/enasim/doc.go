// Package enasim models Amazon's Elastic Network Adapter: PCI 1d0f:0ec2, 1ec2, ec20 or ec21, as on Nitro instances.
//
// Amazon publishes no datasheet. The model is written from the definitions that its public drivers share
// (ena_regs_defs.h, ena_admin_defs.h and ena_eth_io_defs.h of amzn-drivers; comments name the structures) and from the
// behaviour of those drivers. It is compared with Linux's unmodified ena driver (proof/lab). It shares no code with
// nic/drivers/ena.
//
// # Implemented
//
// Register reads by MMIO and by DMA response, the reset protocol with its reasons, the admin queue with optional late
// and out-of-order completions, asynchronous events with the keep-alive, the features that Linux requests (device
// attributes, queue limits in both forms, hints, LLQ, events, host attributes, MTU, link, RSS with Toeplitz and CRC32,
// offloads, interrupt moderation), statistics (basic, ENI, customer metrics), completion and submission queues with
// descriptors in host memory or pushed (LLQ, entries of 128 and 256 bytes, limits of accelerated LLQ), checksum
// insertion from a partial sum, checksum results and hash on receive, frames over several buffers, and interrupts with
// moderation.
//
// # Not implemented
//
// As on EC2, no segmentation offload is offered. Options select what differs between instances: BARs, LLQ, receive
// checks. The PTP clock, hardware timestamps, SRD statistics and extra properties are missing. The LLQ header location
// "header ring", the head write-back completion policies, AQ restart and quiescence are refused with a violation.
// Sorted hash input is not offered, and the sort bits that all public drivers set are ignored. The debug area is not
// written to. Other settings without an effect are accepted with a warning.
//
// # Choices where sources are silent
//
// A submission queue may be full to its depth. A completion queue has no head doorbell on current devices, so it must
// be as deep as its submission queues together. The burst limit is checked for trapped doorbells, such as QEMU's. An
// LLQ entry must be pushed whole, as all public drivers do: the model fills consumed entries with a pattern and refuses
// an entry that contains it. CRC32 is the reflected IEEE one over the fields in Toeplitz's order, started with the
// initial value.
//
// # Cost of a frame on the bus
//
// Receive descriptors are read when the device's cache of 64 is half empty: all new ones that are adjacent and fit, in
// one DMA read. Transmit descriptors in host memory are read on each doorbell, up to 16 in one read. A payload costs
// one DMA read or write per buffer, a completion one DMA write. A frame pushed whole into an LLQ costs no DMA read. An
// LLQ entry counts as one MMIO write per 64 bytes if it arrived through memory (a write-combining burst), otherwise as
// the number of writes made.
package enasim
