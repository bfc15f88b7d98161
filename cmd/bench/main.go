// Command bench measures round trips to a target, keeps them as reports, and compares reports.
package main

import (
	"os"

	"github.com/rebound-nic/rebound/internal/bench"
)

func main() { os.Exit(bench.Main(os.Args[1:])) }
