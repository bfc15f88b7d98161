// Command discover stands in for rebound-discover in tests of packages, because that compiles for minutes.
package main

import (
	"fmt"
	"runtime/debug"
)

func main() {
	b, _ := debug.ReadBuildInfo()
	fmt.Println("rebound-discover", b.Main.Version, "stand-in")
}
