// Package mmio accesses device registers: mapped or trapped windows, doorbells, barriers, and copies into
// write-combining memory. Doorbells are always real pointers. Go has no volatile, so every store whose order a device
// can observe goes through an assembly stub in this package, one stub for each sequence. nic/memory-order.md gives the
// argument for each.
package mmio
