package mmio

// The stubs below are whole sequences: what a driver does between "the descriptor is written" and "the device knows" is
// one call. They take the memory types into account that user space gets:
//
//   - ordinary memory (write-back) that the device reads by DMA: descriptors, buffers, doorbell records;
//   - registers mapped uncached (UC; Device memory on arm64): every store leaves at once, on its own, in order;
//   - registers mapped write-combining (WC; Normal non-cacheable on arm64): stores gather in 64-byte buffers and leave in
//     any order, until a fence.
//
// On amd64, write-back stores and uncached stores are seen in program order, so that nothing but the order of the
// instructions is needed between a descriptor and an uncached doorbell; write-combining stores need SFENCE on either side
// (Intel SDM vol. 3A §13.3.1 and §13.10, AMD APM vol. 2 §7.4.2). On arm64, DMB OSHST orders stores to memory before a
// store to a device, and DSB ST also waits until gathered stores have left (Arm ARM §B2.3).
//
// Sizes are counted in 64-byte blocks. dst must be aligned to 64 bytes, src may lie anywhere; they must not overlap. A
// count of zero or less copies nothing. Nothing is checked: these are for the hot loop, on pointers from Window.Pointer.

// BlockSize is what a processor's write-combining buffer holds, and the unit of the copies, in bytes.
const BlockSize = 64
