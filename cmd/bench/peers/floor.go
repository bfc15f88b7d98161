package peers

import (
	_ "embed" // the floor in C
	"strconv"
)

//go:embed testdata/floor.c
var floorSource []byte

// BuildFloor compiles the least program that answers echo requests over a socket of the kernel's to the file program.
func BuildFloor(program string) error { return compile(floorSource, program) }

// FloorSockets are the kinds of socket that it knows: AF_XDP with the program at the driver's hook or at the generic one,
// and AF_PACKET.
var FloorSockets = []string{"afxdp", "afxdp-generic", "afpacket"}

// Floor returns what BuildFloor made, answering on an interface through a kind of socket, on one core.
func Floor(program, socket, iface string, core int) *Process {
	return &Process{Command: []string{program, socket, iface, strconv.Itoa(core)}, Ready: "ready"}
}
