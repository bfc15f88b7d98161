// Package host collects the facts about a machine that a latency report needs, and finds host settings that increase
// latency. It reads /proc and /sys and changes nothing.
package host

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Facts describe a machine. Empty fields are unknown.
type Facts struct {
	Hostname    string    `json:"hostname"`
	CPU         string    `json:"cpu"`   // model name
	Cores       int       `json:"cores"` // online logical CPUs
	Core        int       `json:"core"`  // the logical CPU that measured; -1 if unspecified
	Kernel      string    `json:"kernel"`
	Cmdline     string    `json:"cmdline"`
	Arch        string    `json:"arch"`
	Hypervisor  string    `json:"hypervisor,omitempty"`
	Governor    string    `json:"governor,omitempty"` // of Core
	CStates     []string  `json:"cstates,omitempty"`  // enabled idle states of Core, each with its exit latency
	SMT         string    `json:"smt,omitempty"`      // "on", "off", "notsupported"
	Isolated    string    `json:"isolated,omitempty"` // isolated CPUs, as the kernel lists them
	NoHzFull    string    `json:"nohz_full,omitempty"`
	Clocksource string    `json:"clocksource,omitempty"`
	THP         string    `json:"thp,omitempty"`
	Mitigations []string  `json:"mitigations,omitempty"`
	Findings    []Finding `json:"findings"` // findings, most serious first
}

// Severity orders findings by their effect on latency.
type Severity string

const (
	Note    Severity = "note"    // informational
	Warning Severity = "warning" // costs microseconds, or affects the tail
	Serious Severity = "serious" // may affect the measurement more than the network does
)

func (s Severity) rank() int { return slices.Index([]Severity{Serious, Warning, Note}, s) }

// Finding is one host setting or condition that increases latency.
type Finding struct {
	ID       string   `json:"id"` // stable: "governor", "cstates", ...
	Severity Severity `json:"severity"`
	What     string   `json:"what"` // what was found, and its effect
	Fix      string   `json:"fix"`  // the command or setting that removes it
}

// UnmarshalJSON reads a finding. Reports before schema 3 have the fix under "mend".
func (f *Finding) UnmarshalJSON(b []byte) error {
	type fields Finding
	v := struct {
		*fields
		Mend string `json:"mend"`
	}{fields: (*fields)(f)}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if f.Fix == "" {
		f.Fix = v.Mend
	}
	return nil
}

// Collect reads the facts from root, which is os.DirFS("/") except in tests. core is the logical CPU that measures or
// answers, or -1 if unspecified: findings about a core are then left out. Fields that cannot be read stay empty.
func Collect(root fs.FS, core int) Facts {
	c := collector{root: root, core: core}
	c.Core, c.Arch = core, runtime.GOARCH
	c.Hostname = c.read("proc/sys/kernel/hostname")
	c.Kernel = c.read("proc/sys/kernel/osrelease")
	c.Cmdline = c.read("proc/cmdline")
	c.Cores = len(parseList(c.read("sys/devices/system/cpu/online")))
	c.CPU = c.cpuModel()

	c.virtualisation()
	c.clocksource()
	c.memory()
	c.mitigations()
	c.irqbalance()
	if core >= 0 {
		c.frequency()
		c.idleStates()
		c.siblings()
		c.isolation()
		c.interrupts()
		c.realtime()
	} else {
		c.SMT = c.read("sys/devices/system/cpu/smt/control")
		c.Isolated = c.isolated()
	}
	slices.SortStableFunc(c.Findings, func(a, b Finding) int {
		return cmp.Compare(a.Severity.rank(), b.Severity.rank())
	})
	return c.Facts
}

type collector struct {
	Facts
	root fs.FS
	core int
}

// read returns a file's content without surrounding white space, "" if there is no such file.
func (c *collector) read(name string) string {
	b, err := fs.ReadFile(c.root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// cpu returns the path of a file in the core's sysfs directory.
func (c *collector) cpu(name string) string {
	return fmt.Sprintf("sys/devices/system/cpu/cpu%d/%s", c.core, name)
}

func (c *collector) find(id string, s Severity, what, fix string) {
	c.Findings = append(c.Findings, Finding{id, s, what, fix})
}

// cpuField returns the first value of a key in /proc/cpuinfo.
func (c *collector) cpuField(key string) string {
	for line := range strings.Lines(c.read("proc/cpuinfo")) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (c *collector) cpuModel() string {
	if m := c.cpuField("model name"); m != "" {
		return m
	}
	if i := c.cpuField("CPU implementer"); i != "" { // arm64 does not list a model name there
		return "implementer " + i + " part " + c.cpuField("CPU part")
	}
	return ""
}

// firmware joins the DMI strings of the machine.
func (c *collector) firmware() string {
	return strings.TrimSpace(c.read("sys/class/dmi/id/sys_vendor") + " " + c.read("sys/class/dmi/id/product_name"))
}

// parseList reads the kernel's list format, "0-3,8".
func parseList(s string) []int {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(lo)
		if err != nil {
			continue
		}
		to := from
		if ranged {
			if to, err = strconv.Atoi(hi); err != nil {
				continue
			}
		}
		for n := from; n <= to && to-from < 1<<16; n++ {
			out = append(out, n)
		}
	}
	return out
}

// directories returns the entries of dir whose names are numbers, ascending.
func (c *collector) directories(dir string) []int {
	entries, _ := fs.ReadDir(c.root, dir)
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(path.Base(e.Name())); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}
