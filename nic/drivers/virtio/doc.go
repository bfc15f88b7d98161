// Package virtio drives a virtio network device over PCI from user space by polling, with receive, rewrite and transmit
// fused into one loop.
//
// Source: Virtual I/O Device (VIRTIO) Version 1.2, OASIS; section numbers in this package refer to it.
//
//	1af4:1041  network device
//	1af4:1000  transitional network device, driven through its modern registers
//
// Split and packed rings are supported; packed is preferred. The device is polled: interrupts are disabled, and event
// indices are not negotiated. No offload is negotiated either, so each frame is complete and has its checksums.
// Features that are not used, although a device may offer them:
//
//   - MRG_RXBUF: a frame must be in one buffer, because it is answered there, and each buffer has room for the longest
//     frame.
//   - IN_ORDER: one used entry could then complete a whole batch, without the lengths of the others.
//   - EVENT_IDX, INDIRECT_DESC: a reply is one descriptor, and the device's request for notifications is one flag.
//
// Buffer i belongs to descriptor i of the receive ring and to descriptor i of the transmit ring, permanently. A
// received buffer contains the header of 12 bytes and the frame; the reply is sent from the same buffer with a cleared
// header. So a buffer has one of three owners: the receive ring, the loop, or the transmit ring. There is no free list
// and no copy, and a used entry that names a buffer which the device does not own is detected. A buffer that crosses
// the end of a huge page is not used (see crosses).
//
// Cost of a reply: no register read, and one register write, the notification, which is omitted if the device says that
// it polls. In a virtual machine that write is an exit to the hypervisor, and dominates the cost.
package virtio
