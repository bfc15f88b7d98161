package host

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

func (c *collector) virtualisation() {
	c.Hypervisor = c.read("sys/hypervisor/type")
	if c.Hypervisor == "" && slices.Contains(strings.Fields(c.cpuField("flags")), "hypervisor") {
		if c.Hypervisor = c.firmware(); c.Hypervisor == "" {
			c.Hypervisor = "unnamed"
		}
	}
	if c.Hypervisor == "" {
		return
	}
	kind := c.Hypervisor
	if kind == "unnamed" {
		kind = "vendor unknown"
	}
	c.find("virtualised", Warning,
		fmt.Sprintf("this is a virtual machine (%s): the hypervisor may take the core away at any time, which no setting in here shows or prevents", kind),
		"use a bare-metal instance, or one with dedicated cores, and read the self-test for what is taken")
	if share := c.stolen(); share > 0.0005 {
		c.find("steal", Serious, fmt.Sprintf("the hypervisor gave %s of this core's time since boot to others",
			latency.FormatShare(share)), "use dedicated cores; measure at another time or on another host")
	}
}

// stolen returns the share of the core's time, or of all cores', that /proc/stat shows as steal (proc_stat(5), 8th
// value).
func (c *collector) stolen() float64 {
	name := "cpu"
	if c.core >= 0 {
		name = fmt.Sprintf("cpu%d", c.core)
	}
	for line := range strings.Lines(c.read("proc/stat")) {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != name {
			continue
		}
		total := 0.0
		var steal float64
		for i, s := range f[1:9] {
			v, _ := strconv.ParseFloat(s, 64)
			total += v
			if i == 7 {
				steal = v
			}
		}
		if total > 0 {
			return steal / total
		}
	}
	return 0
}

func (c *collector) clocksource() {
	c.Clocksource = c.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
	switch c.Clocksource {
	case "", "tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page":
	default:
		c.find("clocksource", Warning,
			fmt.Sprintf("the kernel keeps time by %s, which costs about a microsecond to read: it may have found the TSC unstable", c.Clocksource),
			"see `dmesg | grep -i tsc`; boot with tsc=reliable only where the TSC really is")
	}
}

func (c *collector) memory() {
	if lines := strings.Count(c.read("proc/swaps"), "\n"); lines > 0 {
		c.find("swap", Warning, "swap is on: a page that was swapped out costs milliseconds",
			"swapoff -a, and take it out of /etc/fstab")
	}
	_, rest, _ := strings.Cut(c.read("sys/kernel/mm/transparent_hugepage/enabled"), "[")
	c.THP, _, _ = strings.Cut(rest, "]")
	if c.THP == "always" {
		c.find("thp", Note, "transparent huge pages are on for all memory: khugepaged moves pages under a running process", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
	if c.read("sys/kernel/mm/ksm/run") == "1" {
		c.find("ksm", Warning, "kernel same-page merging is on: a write to a merged page faults",
			"echo 2 > /sys/kernel/mm/ksm/run")
	}
	if n := c.read("proc/sys/kernel/numa_balancing"); n != "" && n != "0" {
		c.find("numa_balancing", Note, "NUMA balancing is on: it unmaps pages from time to time to see who uses them",
			"echo 0 > /proc/sys/kernel/numa_balancing")
	}
}

func (c *collector) mitigations() {
	entries, _ := fs.ReadDir(c.root, "sys/devices/system/cpu/vulnerabilities")
	for _, e := range entries {
		state := c.read("sys/devices/system/cpu/vulnerabilities/" + e.Name())
		if strings.HasPrefix(state, "Mitigation") {
			c.Mitigations = append(c.Mitigations, e.Name()+": "+
				strings.TrimSpace(strings.TrimPrefix(state, "Mitigation:")))
		}
	}
	if len(c.Mitigations) > 0 {
		c.find("mitigations", Note, sanitize.Count(len(c.Mitigations), "active mitigation")+
			" of CPU vulnerabilities: each entry to the kernel costs more, which slows down socket drivers but not drivers on the device itself",
			"on a machine that runs nothing foreign, boot with mitigations=off; else compare only with hosts that have the same")
	}
}

func (c *collector) irqbalance() {
	for _, pid := range c.directories("proc") {
		if c.read(fmt.Sprintf("proc/%d/comm", pid)) == "irqbalance" {
			c.find("irqbalance", Warning,
				fmt.Sprintf("irqbalance runs (pid %d): it moves interrupts, to this core as well", pid),
				"systemctl disable --now irqbalance, or ban the core with IRQBALANCE_BANNED_CPULIST")
			return
		}
	}
}

func (c *collector) frequency() {
	c.Governor = c.read(c.cpu("cpufreq/scaling_governor"))
	if c.Governor != "" && c.Governor != "performance" {
		c.find("governor", Warning, fmt.Sprintf("frequency governor of CPU %d is %s: the clock rate follows the load",
			c.core, c.Governor),
			fmt.Sprintf("echo performance > /sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", c.core))
	}
}

// deepState is the exit latency in µs from which an idle state is a finding: C1 of current CPUs exits within 2 µs.
const deepState = 3

// idleStates lists the enabled idle states of the CPU with their exit latencies, and reports the deepest one if it is
// slow to leave.
func (c *collector) idleStates() {
	deepest, name := 0, ""
	for i := range 16 {
		dir := c.cpu(fmt.Sprintf("cpuidle/state%d/", i))
		state := c.read(dir + "name")
		if state == "" {
			break
		}
		if c.read(dir+"disable") == "1" {
			continue
		}
		us, _ := strconv.Atoi(c.read(dir + "latency"))
		c.CStates = append(c.CStates, fmt.Sprintf("%s %d µs", state, us))
		if us >= deepest {
			deepest, name = us, state
		}
	}
	if deepest >= deepState {
		c.find("cstates", Warning,
			fmt.Sprintf("CPU %d may sleep as deep as %s, which takes %d µs to wake from; a core that polls never sleeps, but the caches and the PCIe path beside it do", c.core, name, deepest),
			"hold /dev/cpu_dma_latency open with 0 written to it, or `cpupower idle-set -D 2`, or boot with processor.max_cstate=1 intel_idle.max_cstate=0")
	}
}

func (c *collector) siblings() {
	c.SMT = c.read("sys/devices/system/cpu/smt/control")
	var others []string
	for _, n := range parseList(c.read(c.cpu("topology/thread_siblings_list"))) {
		if n != c.core {
			others = append(others, strconv.Itoa(n))
		}
	}
	if len(others) > 0 {
		s := strings.Join(others, ", ")
		c.find("smt", Warning, fmt.Sprintf(
			"CPU %d shares its core with CPU %s: whatever runs there takes half the core", c.core, s),
			fmt.Sprintf("echo 0 > /sys/devices/system/cpu/cpu%s/online, or boot with nosmt", others[0]))
	}
}

// isolated lists the CPUs that were isolated when the kernel booted, and those of cpuset partitions (Linux's
// cgroup-v2.rst).
func (c *collector) isolated() string {
	boot, partitions := c.read("sys/devices/system/cpu/isolated"), c.read("sys/fs/cgroup/cpuset.cpus.isolated")
	if boot == partitions || partitions == "" {
		return boot
	}
	return strings.Trim(boot+","+partitions, ",")
}

func (c *collector) isolation() {
	c.Isolated = c.isolated()
	c.NoHzFull = strings.Trim(c.read("sys/devices/system/cpu/nohz_full"), "()nul ")
	if !slices.Contains(parseList(c.Isolated), c.core) {
		c.find("isolation", Warning, fmt.Sprintf("CPU %d is not isolated: the scheduler puts other threads on it",
			c.core),
			fmt.Sprintf("start with cpu.isolate=true (bench: -isolate), or boot with isolcpus=managed_irq,domain,%d",
				c.core))
	}
	if !slices.Contains(parseList(c.NoHzFull), c.core) {
		c.find("nohz_full", Warning,
			fmt.Sprintf("CPU %d has the timer tick: it is interrupted 100 to 1000 times a second, some microseconds each", c.core),
			fmt.Sprintf("boot with nohz_full=%d rcu_nocbs=%d", c.core, c.core))
	}
}

// interrupts finds device interrupts that were delivered to the core and may be again: those of /proc/interrupts with a
// count in its column whose affinity still includes it.
func (c *collector) interrupts() {
	lines := strings.Split(c.read("proc/interrupts"), "\n")
	column := slices.Index(strings.Fields(lines[0]), fmt.Sprintf("CPU%d", c.core))
	if column < 0 {
		return
	}
	cpus := len(strings.Fields(lines[0]))
	var seen []string
	var first int
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) < 1+cpus {
			continue
		}
		irq, err := strconv.Atoi(strings.TrimSuffix(f[0], ":"))
		if err != nil || f[1+column] == "0" {
			continue // a named interrupt belongs to the kernel (timer, rescheduling)
		}
		where := c.read(fmt.Sprintf("proc/irq/%d/effective_affinity_list", irq))
		if where == "" {
			where = c.read(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq))
		}
		if !slices.Contains(parseList(where), c.core) {
			continue
		}
		if len(seen) == 0 {
			first = irq
		}
		seen = append(seen, fmt.Sprintf("%d (%s)", irq, f[len(f)-1]))
	}
	if len(seen) == 0 {
		return
	}
	shown := seen[:min(4, len(seen))]
	more := ""
	if n := len(seen) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	c.find("irqs", Warning, fmt.Sprintf("CPU %d serves device interrupts: %s%s", c.core, strings.Join(shown, ", "),
		more),
		fmt.Sprintf("write a list of other CPUs to /proc/irq/%d/smp_affinity_list, and so on for each", first))
}

// realtime checks the kernel's protection against a SCHED_FIFO loop that never sleeps: until Linux 6.11 real-time
// throttling, from 6.12 on the fair server, whose state only root can read, in debugfs.
func (c *collector) realtime() {
	var major, minor int
	fmt.Sscanf(c.Kernel, "%d.%d", &major, &minor)
	if major > 6 || major == 6 && minor >= 12 {
		file := fmt.Sprintf("sys/kernel/debug/sched/fair_server/cpu%d/runtime", c.core)
		if c.read(file) == "0" {
			return
		}
		c.find("rt_throttling", Note,
			fmt.Sprintf("the fair server takes a real-time thread off CPU %d for 50 ms of each second where others wait for it: a polling loop under SCHED_FIFO would be", c.core),
			"cpu.realtime_guard = \"lift\", or echo 0 > /"+file+", or leave SCHED_FIFO off on an isolated core")
		return
	}
	runtime, err := strconv.Atoi(c.read("proc/sys/kernel/sched_rt_runtime_us"))
	period, err2 := strconv.Atoi(c.read("proc/sys/kernel/sched_rt_period_us"))
	if err != nil || err2 != nil || runtime < 0 || runtime >= period {
		return
	}
	c.find("rt_throttling", Note,
		fmt.Sprintf("real-time threads are held back for %d µs in every %d µs: a polling loop under SCHED_FIFO would be", period-runtime, period),
		"cpu.realtime_guard = \"lift\", or echo -1 > /proc/sys/kernel/sched_rt_runtime_us, or leave SCHED_FIFO off on an isolated core")
}
