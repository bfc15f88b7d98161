package ixgbe_test

import (
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/ixgbe"
	"rebound/nic/nictest"
	"rebound/nic/pci"
	"rebound/nic/sim"
	"rebound/nic/sim/ixgbesim"
)

func harness() nictest.Harness {
	return nictest.Harness{
		Model: func() sim.Model { return ixgbesim.New(ixgbesim.Options{}) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return ixgbe.Open(fn, o) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*ixgbe.Device).Queue(q).Poll(r) },
		Ring:  128, Queues: 4, MTU: 9500, WriteBack: 16,
	}
}

func TestConformance(t *testing.T) { nictest.Run(t, harness()) }
