// Package mlx5 drives NVIDIA (Mellanox) ConnectX-4 and later from user space. It polls, and pushes replies inline
// through BlueFlame.
//
// Source: Mellanox Adapters Programmer's Reference Manual (PRM), revision 0.54 or later, for what is public; for the
// rest, the interface definitions of Linux 6.1 (include/linux/mlx5). Fields are written in the manual's notation:
// offset of the dword in a structure, then bits high to low. Tests compare the commands with a recording of a real
// ConnectX-4 (firmware 14.12.1220) that the Snabb project publishes.
//
//	15b3:1013  ConnectX-4        15b3:1014  its virtual function
//	15b3:1015  ConnectX-4 Lx     15b3:1016  its virtual function
//	15b3:1017  ConnectX-5        15b3:1018  its virtual function
//	15b3:1019  ConnectX-5 Ex     15b3:101a  its virtual function
//	15b3:101b  ConnectX-6        15b3:101c  its virtual function
//	15b3:101d  ConnectX-6 Dx     15b3:101e  virtual function of this and all later ones
//	15b3:101f  ConnectX-6 Lx
//	15b3:1021  ConnectX-7
//	15b3:a2d2  BlueField         15b3:a2d3  its virtual function
//	15b3:a2d6  BlueField-2
//	15b3:a2dc  BlueField-3
//
// They share the initialization segment, the command queue, every command and structure used here, BlueFlame and the
// 64-byte completion. They differ in capabilities, which the driver queries: ConnectX-4 and 4 Lx require headers inline
// in every work queue entry (the vport's minimum inline mode), later ones do not; firmware as old as the recording's
// cannot switch local loopback off. On a virtual function the driver writes no port register and no L2 table entry: the
// host sets MTU, speed and state. It generates a MAC address if the host assigned none, and passes its function ID in
// page commands if firmware uses one.
//
// TestEveryID opens each of these on the model and checks that it answers. The whole conformance suite runs on a
// ConnectX-4, a ConnectX-6 Dx and a virtual function of the latter. None has been tested on real hardware.
//
// # Bus cost of a reply
//
// A work queue entry (WQE) is 16 bytes of control, 14 of Ethernet segment, then the frame. Receive buffers leave 30
// bytes free before the frame, so the driver builds the WQE in place, copies it into the send queue (the device may
// prefer to read it from there) and stores it into BlueFlame. For a frame of up to 226 bytes the device reads nothing
// before it sends. A longer frame uses a WQE of one or two blocks, with the headers that the vport requires and a
// pointer: one payload read. Without BlueFlame the device reads the WQE too.
//
// A receive slot owns one buffer permanently. A slot whose frame was pushed whole is free at once; if the WQE points to
// the frame, the slot waits for the completion. Slots are returned in order. About one WQE in 32 blocks requests a
// completion.
package mlx5
