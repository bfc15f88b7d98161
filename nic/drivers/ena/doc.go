// Package ena drives Amazon's Elastic Network Adapter from user space, polling, with replies pushed into the device where
// it takes them (low-latency queues, LLQ).
//
//	1d0f:0ec2  ENA physical function
//	1d0f:1ec2  ENA physical function, reserved memory
//	1d0f:ec20  ENA virtual function, what instances see
//	1d0f:ec21  ENA virtual function, reserved memory
//
// Source: the device definitions that Amazon publishes with its drivers (ena_regs_defs, ena_admin_defs, ena_eth_io_defs);
// there is no public datasheet. Commands and descriptors are named as there.
//
// A receive buffer has 32 bytes of room in front of the frame. An LLQ entry is two descriptors and the head of the frame,
// so the entry is made where the frame lies, by writing the descriptors before it, and stored from there into the device.
// A frame that fits the entry leaves the host by those stores alone: 96 bytes for the standard entry of 128, 224 for the
// large one of 256. Of a longer one the head is pushed and the rest pointed to.
package ena
