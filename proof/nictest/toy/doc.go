// Package toy is a driver for the device of sim/toysim. No such card exists: the package is the template for device
// drivers, with the files that each of them has, and docs/cards/add-a-nic.md explains it.
//
// A driver's doc.go names its sources (datasheet and revision), the IDs that it supports, and what has been proven and
// how:
//
//	1b36:7ec4  toysim
//
// Source: the documentation of package toysim. Proven on the model only (conformance suite, TestConformance).
//
// It also describes the life cycle of buffers. Each receive slot owns one buffer permanently. A frame is rewritten in
// the buffer of its slot, a transmit descriptor points there, and the slot is returned to the device, in order, once
// that transmit is done.
package toy
