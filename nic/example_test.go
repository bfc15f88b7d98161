package nic_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// open opens a device for a driver: here a model in this process. A program opens pci.Open("0000:03:00.0", false), or
// an interface with afpacket.Open or afxdp.Open.
func open(mac [6]byte, wire *sim.Cable) (d nic.Device, undo func(), err error) {
	port, err := sim.New(virtiosim.New(virtiosim.Options{MAC: mac}), sim.Options{Name: "virtio"})
	if err != nil {
		return nil, nil, err
	}
	port.Connect(wire)
	port.Start()
	fn, err := port.Function()
	if err == nil {
		d, err = virtio.Open(fn, nic.Options{})
	}
	return d, func() { port.Stop(); port.Close() }, err
}

// One device answers on its own thread, and another, at the other end of the wire, sends an echo request and waits for
// the reply. Any driver can be used, because each implements nic.Device.
func Example() {
	near, far := sim.Pair()
	here, undo, err := open([6]byte{2, 0, 0, 0, 0, 1}, near)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer undo()
	there, undo2, err := open([6]byte{2, 0, 0, 0, 0, 2}, far)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer undo2()

	responder, err := fastpath.New(fastpath.Config{MAC: [6]byte{2, 0, 0, 0, 0, 2},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var stop atomic.Bool
	served := make(chan error)
	go func() {
		runtime.LockOSThread()
		served <- there.Serve(0, &stop, responder)
	}()

	request, _ := hex.DecodeString("020000000002" + "020000000001" + "0800" +
		"4500001e000000004001" + "66dd" + "0a000001" + "0a000002" + "0800" + "8f94" + "0001" + "0001" + "6869")
	if err := here.Send(request); err != nil {
		fmt.Println(err)
		return
	}
	reply, n := make([]byte, 2048), 0
	for n == 0 && err == nil { // a bench polls, too
		n, _, err = here.Recv(reply)
		runtime.Gosched()
	}
	fmt.Printf("%v on %s: %d bytes, ICMP type %d, %q, %v\n", there.Info().Driver, there.Info().Backend, n, reply[34],
		reply[42:n], err)

	stop.Store(true)
	fmt.Println("served:", <-served)
	fmt.Println("closed:", errors.Join(here.Close(), there.Close()))

	// Output:
	// virtio on sim: 44 bytes, ICMP type 0, "hi", <nil>
	// served: <nil>
	// closed: <nil>
}

// After an error that is not the loss of the device, closing and opening it again may help.
func ExampleLost() {
	for _, err := range []error{fmt.Errorf("ixgbe 0000:03:00.0: reset: %w", nic.ErrTimeout),
		fmt.Errorf("ixgbe 0000:03:00.0: STATUS reads all ones: %w", nic.ErrGone)} {
		fmt.Println(nic.Lost(err), err)
	}

	// Output:
	// false ixgbe 0000:03:00.0: reset: device did not answer in time
	// true ixgbe 0000:03:00.0: STATUS reads all ones: device is gone
}
