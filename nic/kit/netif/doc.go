// Package netif contains what the socket drivers need to know of a network interface: its identity, the addresses that
// the kernel owns, what the kernel stripped from frames, and when the interface goes down or vanishes.
package netif
