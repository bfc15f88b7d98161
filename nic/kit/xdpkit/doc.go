// Package xdpkit contains what the drivers with an XDP program share: our addresses and the parsing of frames in C
// (rules.h), loading one of several programs of an object, attaching it to an interface, detecting other programs
// there, and the features of the interface's driver.
package xdpkit
