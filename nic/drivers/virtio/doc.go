// Package virtio drives a virtio network device over PCI from user space, polling, with receive, rewrite and transmit
// fused into one loop.
//
// Source: Virtual I/O Device (VIRTIO) Version 1.2, OASIS; section numbers in this package are its own.
//
//	1af4:1041  network device
//	1af4:1000  transitional network device, driven through its modern registers
//
// Split and packed rings are driven, packed where the device offers them. The device is polled: interrupts are
// disabled, and event indices are not negotiated. No offload is negotiated either, so each frame is whole and its
// checksums are there. What is not taken, though a device may offer it:
//
//   - MRG_RXBUF: a frame is in one buffer, since it is answered there, and each buffer holds the longest frame.
//   - IN_ORDER: a used entry may then stand for a whole batch, without the lengths of the others.
//   - EVENT_IDX, INDIRECT_DESC: a reply is one descriptor, and the device's own wish for notifications is one flag.
//
// Buffer i belongs to descriptor i of the receive ring and to descriptor i of the transmit ring, permanently. A
// received buffer is the header of 12 bytes and the frame; the reply goes out from the same buffer with the header
// cleared. So a buffer is in one of three places: given to receive, in the loop's hands, or given to transmit. There
// is no free list and no copy, and a used entry that names a buffer which the device does not have is found out. A
// buffer that goes over the end of a huge page is in none of them (see crosses).
//
// What one reply costs: no register read, and one register write, the notification, which is left out where the
// device says that it polls by itself. In a virtual machine that write is an exit to the hypervisor, and the cost
// that counts.
package virtio
