package baseline

import (
	_ "embed" // the floor in C
	"net"
	"strconv"
)

//go:embed testdata/floor.c
var floorSource []byte

// BuildFloor compiles the smallest program that answers echo requests over a kernel socket, and writes it to the file
// program.
func BuildFloor(program string) error { return Compile(floorSource, program) }

// FloorSockets are the kinds of socket that it supports: AF_XDP with the program in native or generic mode, and
// AF_PACKET answering from the interface's MAC or from OwnMAC.
var FloorSockets = []string{"afxdp", "afxdp-generic", "afpacket", "afpacket-mac"}

// OwnMAC is a MAC address that no interface has.
var OwnMAC = [6]byte{2, 0x52, 0x62, 0x6e, 0x64, 1}

// Floor returns the program built by BuildFloor, answering on an interface through a kind of socket, on one core.
func Floor(program, socket, iface string, core int) *Process {
	p := &Process{Command: []string{program, socket, iface, strconv.Itoa(core)}, Ready: "ready"}
	if socket == "afpacket-mac" {
		p.Command = []string{program, "afpacket", iface, strconv.Itoa(core), net.HardwareAddr(OwnMAC[:]).String()}
	}
	return p
}
