package latency

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// counterSource returns the name of the counter that polling.TSC reads and whether the CPU promises a constant rate
// (CPUID 8000_0007H EDX[8], which Linux shows as constant_tsc and nonstop_tsc).
func counterSource() (name string, steady bool, notes []string) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "tsc", false, []string{
			"/proc/cpuinfo is not readable: it is not known whether the TSC has a constant rate"}
	}
	return "tsc", steadyTSC(string(b), &notes), notes
}

// steadyTSC reports whether the TSC runs at a constant rate and never stops, by the flags in the text of
// /proc/cpuinfo. It appends to notes what is lacking.
func steadyTSC(cpuinfo string, notes *[]string) bool {
	flags := map[string]bool{}
	for line := range strings.Lines(cpuinfo) {
		if rest, ok := strings.CutPrefix(line, "flags"); ok {
			for _, f := range strings.Fields(rest) {
				flags[f] = true
			}
			break
		}
	}
	steady := true
	for _, f := range []struct{ flag, lack string }{
		{"constant_tsc", "the TSC follows the CPU's frequency (no constant_tsc): nanoseconds are wrong whenever it changes"},
		{"nonstop_tsc", "the TSC may stop in deep C-states (no nonstop_tsc): intervals across an idle core are too short"},
	} {
		if !flags[f.flag] {
			steady = false
			*notes = append(*notes, f.lack)
		}
	}
	return steady
}

// declaredFrequency returns the rate with which the kernel converts the TSC, from the page that perf_event_open(2)
// shares (time_mult, time_shift), or 0 if that is not allowed. The CPU or the hypervisor declared it, or the kernel
// calibrated it over a long time.
func declaredFrequency() (hz float64, from string) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Bits: unix.PerfBitDisabled | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return 0, ""
	}
	defer unix.Close(fd)
	mem, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, ""
	}
	defer unix.Munmap(mem)
	return tscRate((*unix.PerfEventMmapPage)(unsafe.Pointer(&mem[0])))
}

// tscRate returns the rate in the page, 0 if it has none.
func tscRate(page *unix.PerfEventMmapPage) (hz float64, from string) {
	const capUserTime = 1 << 3
	if page.Capabilities&capUserTime == 0 || page.Time_mult == 0 {
		return 0, ""
	}
	return 1e9 / float64(page.Time_mult) * float64(uint64(1)<<page.Time_shift), "the kernel's own TSC rate"
}
