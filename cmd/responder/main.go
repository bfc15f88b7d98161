// Command responder answers ICMP echo, UDP and STAMP from a dedicated core, with the driver's receive and transmit and
// the rewrite fused into one loop.
package main

import (
	"os"

	"github.com/rebound-nic/rebound/internal/responder"
)

func main() { os.Exit(responder.Main(os.Args[1:])) }
