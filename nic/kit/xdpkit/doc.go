// Package xdpkit is what the drivers with an XDP program share: who we are and how a frame is read in C (rules.h), loading a program
// of several that an object has, its way to an interface's hook, who is there already, and what the interface's driver can.
package xdpkit
