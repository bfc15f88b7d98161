// Package kit is what drivers on the device itself have in common: opening and closing, options and their limits, DMA
// memory, the watch that looks after an open device and restarts it, and totals that survive a restart. A driver keeps its
// registers, its init sequence, its queues with their Poll, and the symptoms by which it is seen to be sick.
//
// Nothing here is called in a Poll. See docs/add-a-nic.md for how a driver is built on it, and proof/nictest/toy for one.
package kit
