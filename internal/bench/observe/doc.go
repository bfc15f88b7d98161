// Package observe reads what this host knows about a measurement that the probes do not show: frames dropped by rings,
// sockets, NICs and the kernel, events on the measuring core, and the error of this host's clock.
//
// The core is watched from other CPUs: the kernel's counters of interrupts, softirqs and scheduling are read from
// memory some hundred times per second, at no cost to the measuring core.
package observe
