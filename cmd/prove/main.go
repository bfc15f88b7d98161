// Command prove runs the long proofs that are not tests: fault campaigns, side-by-side benchmarks and differential
// testing.
package main

import (
	"fmt"
	"os"

	"github.com/rebound-nic/rebound/proof/blame"
	"github.com/rebound-nic/rebound/proof/campaign"
	"github.com/rebound-nic/rebound/proof/differential"
	"github.com/rebound-nic/rebound/proof/peers"
)

const help = `usage: prove COMMAND [flags]

  prove campaign   inject faults under traffic, one after the other, and count what came back
  prove blame      plant causes of latency, and compare them with the sides that reports name
  prove peers      compare the responder and its loops with other programs that answer
  prove oracle     compare the fast path with an independent implementation, on random frames

"prove COMMAND -h" lists a command's flags.
`

func main() {
	if campaign.IsClockGuard() {
		os.Exit(campaign.GuardClock())
	}
	if blame.IsChild() {
		os.Exit(blame.Child())
	}
	args := os.Args[1:]
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, help)
		os.Exit(2)
	}
	switch command, args := args[0], args[1:]; command {
	case "campaign":
		os.Exit(campaign.Main(args))
	case "blame":
		os.Exit(blame.Main(args))
	case "peers":
		os.Exit(peers.Main(args))
	case "oracle":
		os.Exit(differential.Main(args))
	case "-h", "-help", "--help", "help":
		fmt.Print(help)
	default:
		fmt.Fprintf(os.Stderr, "prove: unknown command %q\n%s", command, help)
		os.Exit(2)
	}
}
