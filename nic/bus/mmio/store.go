package mmio

// Each stub below is a whole sequence: everything between "the descriptor is written" and "the device has been
// notified" is one call. The stubs handle the memory types that user space gets:
//
//   - ordinary memory (write-back) that the device reads by DMA: descriptors, buffers, doorbell records
//   - registers mapped uncached (UC; Device memory on arm64): each store leaves at once, separately and in order
//   - registers mapped write-combining (WC; Normal non-cacheable on arm64): stores gather in 64-byte buffers and leave
//     in any order, until a fence
//
// On amd64, write-back and uncached stores become visible in program order, so an uncached doorbell needs no fence
// after the descriptor. Write-combining stores need SFENCE on either side (Intel SDM vol. 3A §13.3.1 and §13.10, AMD
// APM vol. 2 §7.4.2). On arm64, DMB OSHST orders stores to memory before a store to a device, and DSB ST also waits
// until gathered stores have left (Arm ARM §B2.3).
//
// Sizes are in 64-byte blocks. dst must be aligned to 64 bytes, src need not be aligned, and they must not overlap. A
// count of zero or less copies nothing. Nothing is checked: these are for the hot loop, with pointers from
// Window.Pointer.

// BlockSize is the size of a processor's write-combining buffer and the unit of the copies, in bytes.
const BlockSize = 64
