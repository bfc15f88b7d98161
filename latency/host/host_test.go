package host

import (
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rebound-nic/rebound/proof/check"
)

// ideal is a machine without findings for CPU 3.
func ideal() map[string]string {
	return map[string]string{
		"proc/sys/kernel/hostname":                                        "bench1\n",
		"proc/sys/kernel/osrelease":                                       "6.12.1\n",
		"proc/sys/kernel/sched_rt_runtime_us":                             "-1\n",
		"proc/sys/kernel/sched_rt_period_us":                              "1000000\n",
		"sys/kernel/debug/sched/fair_server/cpu3/runtime":                 "0\n",
		"proc/sys/kernel/numa_balancing":                                  "0\n",
		"proc/cmdline":                                                    "isolcpus=2-3 nohz_full=2-3\n",
		"proc/cpuinfo":                                                    "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu tsc\n",
		"proc/stat":                                                       "cpu  1 2 3 4 5 6 7 0 0 0\ncpu3 100 0 0 900 0 0 0 0 0 0\n",
		"proc/swaps":                                                      "Filename\tType\tSize\tUsed\tPriority\n",
		"proc/1/comm":                                                     "systemd\n",
		"proc/interrupts":                                                 "      CPU0  CPU1  CPU2  CPU3\n 24:   5   0   0   7  PCI-MSI 1-edge  eth0-rx\nLOC:  9 9 9 9  Local timer interrupts\n",
		"proc/irq/24/effective_affinity_list":                             "0\n",
		"sys/devices/system/cpu/online":                                   "0-3\n",
		"sys/devices/system/cpu/isolated":                                 "2-3\n",
		"sys/devices/system/cpu/nohz_full":                                "2-3\n",
		"sys/devices/system/cpu/smt/control":                              "off\n",
		"sys/devices/system/cpu/cpu3/topology/thread_siblings_list":       "3\n",
		"sys/devices/system/cpu/cpu3/cpufreq/scaling_governor":            "performance\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state0/name":                 "POLL\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state0/latency":              "0\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state0/disable":              "0\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state1/name":                 "C6\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state1/latency":              "133\n",
		"sys/devices/system/cpu/cpu3/cpuidle/state1/disable":              "1\n",
		"sys/devices/system/cpu/vulnerabilities/meltdown":                 "Not affected\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
		"sys/kernel/mm/transparent_hugepage/enabled":                      "always [madvise] never\n",
		"sys/kernel/mm/ksm/run":                                           "0\n",
	}
}

func collect(files map[string]string, core int) Facts {
	root := fstest.MapFS{}
	for name, s := range files {
		root[name] = &fstest.MapFile{Data: []byte(s)}
	}
	return Collect(root, core)
}

// changed collects an ideal machine's facts, with other contents of some files.
func changed(with map[string]string) Facts {
	files := ideal()
	maps.Copy(files, with)
	return collect(files, 3)
}

func TestIdealHost(t *testing.T) {
	f := collect(ideal(), 3)
	if len(f.Findings) != 0 {
		t.Errorf("findings on an ideal host: %+v", f.Findings)
	}
	if f.Hostname != "bench1" || f.CPU != "Xeon" || f.Cores != 4 || f.Core != 3 || f.Kernel != "6.12.1" ||
		f.Governor != "performance" || f.Cmdline != "isolcpus=2-3 nohz_full=2-3" ||
		f.SMT != "off" || f.Isolated != "2-3" || f.NoHzFull != "2-3" || f.Clocksource != "tsc" || f.THP != "madvise" ||
		len(f.CStates) != 1 || f.CStates[0] != "POLL 0 µs" {
		t.Errorf("facts: %+v", f)
	}
}

func TestFindings(t *testing.T) {
	for _, c := range []struct {
		file, content, want string
	}{
		{"sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n", "governor"},
		{"sys/devices/system/cpu/cpu3/cpuidle/state1/disable", "0\n", "cstates"},
		{"sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "1,3\n", "smt"},
		{"sys/devices/system/cpu/isolated", "\n", "isolation"},
		{"sys/devices/system/cpu/nohz_full", " (null)\n", "nohz_full"},
		{"proc/swaps", "Filename\tType\n/dev/sda2 partition 1 0 -2\n", "swap"},
		{"sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n", "thp"},
		{"sys/kernel/mm/ksm/run", "1\n", "ksm"},
		{"proc/irq/24/effective_affinity_list", "2-3\n", "irqs"},
		{"proc/77/comm", "irqbalance\n", "irqbalance"},
		{"sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n", "mitigations"},
		{"proc/cpuinfo", "flags : fpu hypervisor\n", "virtualised"},
		{"sys/hypervisor/type", "xen\n", "virtualised"},
		{"sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n", "clocksource"},
		{"sys/kernel/debug/sched/fair_server/cpu3/runtime", "50000000\n", "rt_throttling"},
		{"proc/sys/kernel/numa_balancing", "1\n", "numa_balancing"},
	} {
		var ids []string
		for _, f := range changed(map[string]string{c.file: c.content}).Findings {
			ids = append(ids, f.ID)
			if f.What == "" || f.Fix == "" || f.Severity.rank() < 0 {
				t.Errorf("%s: incomplete finding %+v", c.file, f)
			}
		}
		check.Equal(t, strings.Join(ids, " "), c.want, c.file+": findings %q")
	}
}

// Which of the two kernel mechanisms limits a real-time thread depends on the release.
func TestRealtimeGuard(t *testing.T) {
	for _, c := range []struct {
		release, runtime, server, want string
	}{
		{"6.11.2", "950000", "50000000", "50000 µs in every 1000000 µs"},
		{"6.11.2", "-1", "50000000", ""},
		{"6.11.2", "0", "50000000", "1000000 µs in every 1000000 µs"},
		{"6.12.1", "950000", "50000000", "fair server"},
		{"7.0.0-rc1", "950000", "", "fair server"}, // only root can read it
		{"7.0.0-rc1", "950000", "0", ""},
	} {
		got := ""
		for _, f := range changed(map[string]string{"proc/sys/kernel/osrelease": c.release,
			"proc/sys/kernel/sched_rt_runtime_us":             c.runtime,
			"sys/kernel/debug/sched/fair_server/cpu3/runtime": c.server}).Findings {
			got += f.What
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("Linux %s, sched_rt_runtime_us %s, fair server %q: %q, want %q", c.release, c.runtime, c.server,
				got, c.want)
		}
	}
}

func TestSteal(t *testing.T) {
	f := changed(map[string]string{"proc/cpuinfo": "flags : hypervisor\n",
		"proc/stat": "cpu 9 0 0 0 0 0 0 9 0 0\ncpu2 9 0 0 0 0 0 0 9 0 0\ncpu3\ncpu3 100 0 0 890 0 0 0 10 0 0\n"}).Findings
	if len(f) != 2 || f[0].ID != "steal" || f[0].Severity != Serious || !strings.Contains(f[0].What, " 1 %") {
		t.Errorf("findings %+v, want steal of 1 %% first", f)
	}
}

func TestNoCore(t *testing.T) {
	files := ideal()
	delete(files, "sys/devices/system/cpu/isolated")
	if f := collect(files, -1); len(f.Findings) != 0 || f.Core != -1 {
		t.Errorf("%+v", f)
	}
}

func TestNothingReadable(t *testing.T) {
	f := Collect(fstest.MapFS{}, 0)
	for _, x := range f.Findings {
		if x.ID != "isolation" && x.ID != "nohz_full" {
			t.Errorf("finding from nothing: %+v", x)
		}
	}
}

func TestThisHost(t *testing.T) {
	f := Collect(os.DirFS("/"), 0)
	if f.Kernel == "" || f.Cores < 1 || f.CPU == "" {
		t.Errorf("facts of this host: %+v", f)
	}
	t.Logf("%+v", f)
}

func TestParseList(t *testing.T) {
	for in, want := range map[string]int{"": 0, "0": 1, "0-3,8": 5, "3-1": 0, "x": 0, "0-99999999": 0, "1-": 0} {
		check.Equal(t, len(parseList(in)), want, "parseList("+in+") has %d")
	}
}
