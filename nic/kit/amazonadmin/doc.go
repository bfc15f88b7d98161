// Package amazonadmin implements what Amazon's network devices (ENA, EFA) share below their own commands: registers
// that are read without an MMIO read, the admin queue with its completion queue, and the asynchronous event queue.
//
// Source: the device definitions that Amazon publishes with its drivers (ena_regs_defs, ena_admin_defs, efa_regs_defs).
// Both devices have the same register layout; a Dialect describes the differences.
package amazonadmin
