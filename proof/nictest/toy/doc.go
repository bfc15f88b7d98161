// Package toy drives the device of sim/toysim. No card has it: the package is the template for drivers on the device
// itself, with the files that each of them has, and docs/add-a-nic.md leads through it.
//
// A driver's doc.go names its sources (datasheet and revision), the IDs that it drives, and what is proven how:
//
//	1b36:7ec4  toysim
//
// Source: the page of package toysim. Proven on the model only (conformance suite, TestConformance).
//
// It says how buffers go round, too. Each receive slot owns one buffer permanently. A frame is rewritten in the
// buffer of its slot, a transmit descriptor points there, and the slot is returned to the device, in order, once that
// transmit is done.
package toy
