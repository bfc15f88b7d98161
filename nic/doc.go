// Package nic defines what all drivers have in common: the Device contract, link state, counters and errors. It is
// independent of any particular device, bus or frame content.
package nic
