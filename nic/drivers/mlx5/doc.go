// Package mlx5 drives NVIDIA (Mellanox) ConnectX-4 and later from user space, polling, with replies pushed inline
// through BlueFlame.
//
// Source: Mellanox Adapters Programmer's Reference Manual (PRM), revision 0.54 or later, as far as it is public;
// where it is not, the interface definitions of Linux 6.1 (include/linux/mlx5). Fields are written in the manual's
// notation: offset of the dword in a structure, then bits high to low. The recording of a real ConnectX-4 (firmware
// 14.12.1220) that the Snabb project publishes is what this package's commands are compared with.
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
// All of them share the initialization segment, the command queue, every command and structure used here, BlueFlame
// and the 64-byte completion. They differ in capabilities, which are requested: ConnectX-4 and 4 Lx want headers
// inline in every work queue entry (the vport's minimum inline mode), later ones do not; firmware of the recording's
// age cannot switch local loopback. On a virtual function no port register is written and no L2 table filled: MTU,
// speed and state are the host's. It draws an address where the host gave it none, and names itself to firmware as
// firmware does where pages are spoken of.
//
// Every one of these is opened and answers on the model (TestEveryID); the whole conformance suite runs on a
// ConnectX-4, a ConnectX-6 Dx and a virtual function of the latter. None has been opened on silicon.
//
// # What one reply costs on the bus
//
// A work queue entry (WQE) is 16 bytes of control, 14 of Ethernet segment, then the frame. Receive buffers leave 30
// bytes free before the frame, so the WQE is made where the frame lies, copied into the send queue (the device may
// prefer to read it from there) and stored from there into BlueFlame: for a frame of up to 226 bytes nothing is read
// on the way to the wire. Of a longer frame a WQE of one or two blocks goes the same way, with the headers that the
// vport demands and a pointer: one payload read. Without BlueFlame the device reads the WQE too.
//
// A receive slot owns one buffer permanently. A frame that was pushed whole leaves its slot free at once; the slot of
// one that is pointed to waits for the completion. Slots are handed back in order. Completions are requested once in
// some 32 blocks.
package mlx5
