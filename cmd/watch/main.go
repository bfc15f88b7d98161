// Command watch probes many hosts continuously, and finds which host, link or zone explains what fails.
package main

import (
	"os"

	"github.com/rebound-nic/rebound/fleet"
)

func main() { os.Exit(fleet.Main(os.Args[1:])) }
