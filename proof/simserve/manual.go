package simserve

import (
	"io"

	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
)

const about = `Serves device models of network cards over vfio-user, for QEMU's vfio-user-pci and for drivers of Rebound (nic.device =
"vfio-user:PATH"), and joins them by wires: the two of a pair, or one to a tap interface of the kernel.

  rebound-simnic -model ixgbe -socket /run/nic0 -wire tap:rb0
  rebound-simnic -model ixgbe -socket /run/a -model ixgbe -socket /run/b -wire pair -wire pcap:ab.pcap

SIGUSR1 prints what was counted so far, as -counts does at the end. SIGUSR2 resets every device under its driver. "rebound-simnic manual" prints
this page, "rebound-simnic completion bash" shell completion (also zsh and fish).`

// printManual writes the files that a package includes in addition to the program.
func printManual(w io.Writer, what string, rest []string) error {
	p := &manual.Program{Name: "rebound-simnic", Section: 1, Line: "device models of network cards over vfio-user",
		Doc: about,
		Commands: []manual.Command{{Args: "-model NAME -socket PATH [...] -wire pair|tap:NAME|pcap:FILE [flags]",
			Flags: new(config).flags()}},
		Exit:    "0 done, 1 failed or a driver misbehaved (-strict), 2 used wrongly.",
		SeeAlso: []string{"rebound-responder(8)", "rebound-bench(1)"}}
	switch what {
	case "completion":
		shell := "bash"
		if len(rest) > 0 {
			shell = rest[0]
		}
		return p.WriteCompletion(w, shell)
	case manual.CompleteCommand:
		return p.Complete(w, rest)
	}
	v, day := process.BuildStamp()
	return p.WriteMan(w, v, day)
}
