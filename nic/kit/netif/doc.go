// Package netif is what the drivers on the kernel's sockets need to know of a network interface: its identity, the
// addresses that the kernel owns, what it stripped from frames, and when it goes down or vanishes.
package netif
