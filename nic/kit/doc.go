// Package kit contains what drivers on the device have in common: opening and closing, options and their limits, DMA
// memory, the watchdog that checks an open device and restarts it, and totals that survive a restart. A driver
// implements its registers, its init sequence, its queues with their Poll, and the symptoms of an unhealthy device.
//
// No Poll calls anything here. See docs/cards/add-a-nic.md for how to build a driver on it, and proof/nictest/toy for
// an example.
package kit
