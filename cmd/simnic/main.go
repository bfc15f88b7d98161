// Command simnic serves device models over vfio-user and connects them: to QEMU's vfio-user-pci, and to drivers of
// Rebound.
package main

import (
	"os"

	"github.com/rebound-nic/rebound/proof/simserve"
)

func main() { os.Exit(simserve.Main(os.Args[1:])) }
