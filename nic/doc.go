// Package nic is what all drivers have in common: the Device contract, link state, counters and errors. It knows nothing
// of any one device, of a bus, or of a frame's content.
package nic
