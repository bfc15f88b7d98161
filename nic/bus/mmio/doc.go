// Package mmio reaches device registers: windows that are mapped or trapped, doorbells that are always real pointers,
// barriers, and copies into write-combining memory. Go has no volatile: every store that a device must see as written goes
// through an assembly stub here, one stub for each sequence. docs/memory-order.md has the argument for each.
package mmio
