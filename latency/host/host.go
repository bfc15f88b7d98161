// Package host collects what a latency measurement must say of the machine that it ran on, and finds what about that
// machine costs latency. It reads /proc and /sys and changes nothing.
package host

import "io/fs"

// Facts describe a machine. Empty fields are unknown.
type Facts struct {
	Hostname    string    `json:"hostname"`
	CPU         string    `json:"cpu"`   // model name
	Cores       int       `json:"cores"` // online logical CPUs
	Core        int       `json:"core"`  // the logical CPU that measured; -1 if none in particular
	Kernel      string    `json:"kernel"`
	Cmdline     string    `json:"cmdline"`
	Arch        string    `json:"arch"`
	Hypervisor  string    `json:"hypervisor,omitempty"`
	Governor    string    `json:"governor,omitempty"` // of Core
	CStates     []string  `json:"cstates,omitempty"`  // enabled idle states of Core with exit latency
	SMT         string    `json:"smt,omitempty"`      // "on", "off", "notsupported"
	Isolated    string    `json:"isolated,omitempty"` // isolcpus in force, as a list
	NoHzFull    string    `json:"nohz_full,omitempty"`
	Clocksource string    `json:"clocksource,omitempty"`
	THP         string    `json:"thp,omitempty"`
	Mitigations []string  `json:"mitigations,omitempty"`
	Findings    []Finding `json:"findings"` // what is not ideal
}

// Severity orders findings by what they cost.
type Severity string

const (
	Note    Severity = "note"    // good to know
	Warning Severity = "warning" // costs microseconds, or shows in the tail
	Serious Severity = "serious" // the measurement says more about this than about the network
)

// Finding is one thing about the machine that costs latency.
type Finding struct {
	ID       string   `json:"id"` // stable: "governor", "cstates", ...
	Severity Severity `json:"severity"`
	What     string   `json:"what"` // what was seen, and what it does
	Mend     string   `json:"mend"` // how to mend it
}

// Collect reads the facts from root, which is os.DirFS("/") but in tests. core is the logical CPU that measures or
// answers, -1 for none in particular: findings about a core are then left out. What cannot be read stays empty.
func Collect(root fs.FS, core int) Facts {
	return Facts{Core: core}
}
