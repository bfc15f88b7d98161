// Package amazonadmin is what Amazon's network devices (ENA, EFA) share below their own commands: registers that are read
// without an MMIO read, the admin queue with its completion queue, and the asynchronous event queue.
//
// Source: the device definitions that Amazon publishes with its drivers (ena_regs_defs, ena_admin_defs, efa_regs_defs).
// Both devices lay these registers out alike; a Dialect says where they differ.
package amazonadmin
