// Package ena drives Amazon's Elastic Network Adapter from user space by polling, with replies pushed into the device
// if it supports that (low-latency queues, LLQ).
//
//	1d0f:0ec2  ENA physical function
//	1d0f:1ec2  ENA physical function, reserved memory
//	1d0f:ec20  ENA virtual function, on instances
//	1d0f:ec21  ENA virtual function, reserved memory
//
// Source: the device definitions that Amazon publishes with its drivers (ena_regs_defs, ena_admin_defs,
// ena_eth_io_defs); there is no public datasheet. Commands and descriptors have their names from there.
//
// A receive buffer has 32 bytes of room before the frame. An LLQ entry is two descriptors and the start of the frame,
// so the entry is built in place, by writing the descriptors before the frame, and stored from there into the device. A
// frame that fits the entry leaves the host by those stores alone: 96 bytes for the standard entry of 128, 224 for the
// large one of 256. Of a longer frame the start is pushed, and a pointer covers the rest.
package ena
