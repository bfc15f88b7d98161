package efa

import (
	"net/netip"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
)

// control creates the device's objects and reads its state. The queues on those objects are the same for every
// implementation.
type control interface {
	// open checks that the device can be used. It is called once.
	open() error
	// start brings the device from any state to one in which objects can be created, without any earlier objects, and
	// sets Device's information about it.
	start(reason uint32) error

	// protect creates the protection domain of all objects. It comes first after start.
	protect() error
	// register returns size bytes or more for messages, and their local key.
	register(size int) (dma.Block, uint32, error)
	createCQ(name string, depth uint32, entry int) (createdRings, error)
	// createQP creates a queue pair that can send and receive, and sets p's memory, doorbells and number.
	createQP(p *pair, s nic.Service, rx, tx uint32) error
	createAH(gid netip.Addr) (uint16, error)
	destroyAH(number uint16) error

	// count returns the device's own counters.
	count() (nic.Stats, error)
	// events adds event counters to extra.
	events(extra map[string]uint64)
	// check returns what is wrong with the device.
	check(polled bool) (*kit.Symptom, error)
	// answers returns an error if the device does not respond.
	answers() error
	// revive makes a device that does not respond ready for start.
	revive() error
	// release stops the device and frees its memory.
	release() error
}

// createdRings is a new completion queue, whose rings are contiguous.
type createdRings struct {
	index    uint32 // for createQP
	at       unsafe.Pointer
	doorbell *uint32 // nil unless the device requires reports of consumed completions
}
