package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A cost is what a package's tests take on a machine with two cores: make times prints the measured values, without the
// CPU time of browsers. A package that waits half of its time counts as half a core.
type cost struct {
	seconds int
	cores   float64
}

// costs are those of the packages that take longest, with a sixth less of a core than measured: a job does not use its
// cores evenly. The other packages share two jobs, one after the other in each.
var costs = map[string]cost{
	"fastpath":               {21, 0.8},
	"proof/endtoend":         {290, 0.65},
	"internal/bench/observe": {48, 0.1},
	"internal/bench/engine":  {18, 0.9},
	"fleet/prom":             {9, 0.8},
	"internal/bench/measure": {40, 0.5},
	"fleet/suspects":         {16, 0.9},
	"fleet/watch":            {22, 0.5},
	"internal/evidence":      {22, 0.4},
	"internal/responder":     {90, 0.75},
	"latency/calibration":    {11, 0.9},
	"latency/page":           {31, 0.8},
	"nic/drivers/afpacket":   {6, 0.7},
	"nic/drivers/afxdp":      {7, 0.8},
	"nic/drivers/efa":        {38, 0.7},
	"nic/drivers/ena":        {40, 0.6},
	"nic/drivers/ixgbe":      {32, 0.3},
	"nic/drivers/mlx4":       {59, 0.6},
	"nic/drivers/mlx5":       {54, 0.5},
	"nic/drivers/virtio":     {5, 0.9},
	"nic/drivers/xdp":        {31, 0.6},
	"proof/blame":            {50, 0.8},
	"proof/campaign":         {60, 0.5},
	"proof/catalogue":        {32, 0.8},
	"proof/docs":             {60, 0.8},
	"proof/nictest":          {8, 0.8},
	"proof/replay":           {37, 0.5},
	"proof/vet":              {15, 1},
}

// separately reports whether a package has its own jobs, as the lab does.
func separately(pkg string) bool { return pkg == "proof/lab" || strings.HasPrefix(pkg, "proof/lab/") }

// packages lists the module's packages that have tests, without the module's name.
func packages() ([]string, error) {
	out, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}",
		"./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []string
	for _, p := range strings.Fields(string(out)) {
		all = append(all, short(p, ""))
	}
	return all, nil
}

// goTest is a job that tests packages. Its limit allows for a machine ten times as slow. Only the runner limits it (see
// wait), because the timeout of go test would count the time of a loaded machine in full.
func goTest(name string, c cost, flags []string, pkgs ...string) job {
	// proof/vet applies vet; -w leaves debugger information out, which takes a sixth of the time of linking
	args := []string{"go", "test", "-json", "-vet=off", "-ldflags=-w", "-count=1", "-p", "1", "-timeout", "0"}
	for i, p := range pkgs {
		pkgs[i] = "./" + strings.TrimPrefix(p, "./")
	}
	return job{name: name, command: slices.Concat(args, flags, pkgs), test: true, seconds: c.seconds, cores: c.cores,
		limit: 5*time.Minute + 10*time.Duration(c.seconds)*time.Second}
}

// tests are jobs for each of the packages.
func tests(pkgs []string, flags ...string) []job {
	var jobs []job
	var small []string
	for _, p := range pkgs {
		if separately(p) {
			continue
		}
		if c, ok := costs[p]; ok {
			own := flags
			if skip := map[string]string{"internal/responder": cards, "nic/drivers/mlx4": vfioUser}[p]; skip != "" {
				own = slices.Concat(flags, []string{"-skip", skip})
			}
			jobs = append(jobs, goTest(p, c, own, p))
		} else {
			small = append(small, p)
		}
	}
	// Two jobs, so that one slow package does not delay all the others.
	half := (len(small) + 1) / 2
	for i, part := range [][]string{small[:half], small[half:]} {
		if len(part) > 0 {
			jobs = append(jobs, goTest(fmt.Sprintf("other packages, part %d", i+1), cost{74, 0.8}, flags, part...))
		}
	}
	return jobs
}

// build compiles packages for an architecture, and programs also link. In the first stage it keeps the jobs of the next
// one, which run side by side, from compiling the same packages several times. The compiler takes a fifth less CPU time
// with a larger heap.
func build(pkgs, arch string) job {
	return job{name: "build (" + arch + ")", command: []string{"go", "build", "-o", os.DevNull, pkgs}, seconds: 60,
		cores: 1, limit: 20 * time.Minute, env: []string{"GOARCH=" + arch, "GOGC=400"}}
}

// race tests packages with concurrent access (polling loops, their watchdogs, and readers of their counters) under the
// race detector, which needs cgo and does not see DMA memory. A conformance suite takes minutes under it; the fault
// tests cover the same paths. TestFlippedWriteBacks polls while the driver may restart itself. The others that it skips
// step a driver and a model for long in one goroutine, or run the XDP program on frames.
func race(name string, seconds int, pkgs ...string) job {
	j := goTest(name, cost{seconds, 0.6}, []string{"-race", "-skip",
		"Conformance|MixedTraffic|TestEveryID|HotLoop|TestCorpus|TestMutations|TestFlippedWriteBacks|" +
			"Cost$|Wrap$|TestEvery.*Length|TestContextMemory|TestRemovedOpening|TestRecovers/admin_queue_stalled|" +
			"Fastpaths$|TestFloodSparesKnownSources|TestLoopLooksAtTheClock|TestTrailers|TestBase$"},
		slices.Clone(pkgs)...)
	j.env, j.variant, j.needs = []string{"CGO_ENABLED=1"}, "race", "cc"
	return j
}

// raceResponder runs the responder's program, built with the race detector, through what it does beside its loop, with
// the model of one card too. plainResponder has the other cards: their drivers are under the race detector in their own
// tests.
func raceResponder() job {
	j := race("race detector, responder", 150, "internal/responder")
	j.command = append(j.command, "-run", "^(TestAnswers|TestSTAMP|TestServiceManager|TestPinned|"+
		"TestInterfaceFails|TestReflector|TestCollectionBetweenLoops|TestLoopFails|TestMessageSettings|"+
		"TestAnswersOnMlx4)$|^TestPlantedDrops$/^mlx5$")
	return j
}

func plainResponder() job {
	j := goTest("internal/responder, other cards", cost{60, 0.8}, []string{"-run",
		"^TestPlantedDrops$/^(mlx4|ixgbe|virtio|ena|ena_overruns|efa)$"}, "internal/responder")
	j.variant = "cards"
	return j
}

// emulated tests packages for arm64, 20 times as slow, without two tests that take half of fastpath's time: they mutate
// frames, which code in Go alone reads.
func emulated(pkgs ...string) job {
	j := goTest("arm64 emulation", cost{90, 0.8}, []string{"-short", "-skip", "^Test(Random|SingleByte)Mutations$",
		"-exec", "qemu-aarch64-static"}, pkgs...)
	j.env, j.variant, j.needs = []string{"GOARCH=arm64"}, "arm64", "qemu-aarch64-static"
	return j
}

// Names of tests, in the format of -run and -skip.
const (
	// of packaging, in make lab
	boots    = "^(TestInstall|TestContainer|TestMesh|TestScrape|TestReproducible|TestWorkflow)$"
	vfioUser = "^TestConformanceOverVFIOUser$"          // of nic/drivers/mlx4, in make lab
	smoke    = "^TestLabSmoke$"                         // of proof/lab, in make test
	cards    = "^(TestPlantedDrops|TestAnswersOnMlx4)$" // of internal/responder, in make lab
)

// mixedTraffic sends ten times as many frames of mixed traffic beside the kernel's driver as make test: enough to wrap
// the cards' 16-bit indices of every queue.
func mixedTraffic() job {
	j := goTest("200,000 frames beside the kernel's driver", cost{30, 0.9},
		[]string{"-run", "^TestBesideMixedTraffic$"}, "nic/drivers/mlx5", "nic/drivers/mlx4")
	j.env, j.variant = []string{"REBOUND_MIXED_FRAMES=200000"}, "200,000 frames"
	return j
}

func packaging(folder, name string, seconds int, flags ...string) job {
	j := goTest(name, cost{seconds, 0.6}, flags, ".")
	j.dir, j.variant = folder, "packaging"
	return j
}

// A plan is a command's sequence of stages, each with jobs.
type plan [][]job

// testPlan is make test: all packages. The race detector and arm64 compile the standard library again, so make lab has
// them.
func testPlan(pkgs []string) plan {
	purego := goTest("pure Go", cost{5, 1}, []string{"-tags", "purego"}, "nic/bus/mmio")
	purego.variant = "purego"
	return plan{{build("./...", "amd64")},
		append(tests(pkgs),
			purego,
			packaging("packaging", "packaging", 40, "-skip", boots),
			goTest("lab, without guests", cost{10, 1}, []string{"-short", "-skip", smoke}, "proof/lab/..."),
			goTest("lab, smoke", cost{130, 0.9}, []string{"-run", smoke}, "proof/lab"),
		)}
}

// checkPlan is make check: what needs neither root nor a network, and not long. A single go command loads all packages
// once, tests three packages for each core, because many wait, the longest first, and reuses the results of packages
// that are unchanged since the last run.
func checkPlan(pkgs []string) plan {
	pkgs = slices.DeleteFunc(slices.Clone(pkgs), func(p string) bool {
		return slices.ContainsFunc(checkLeaves, func(l leaf) bool { return matches(l.pattern, p) })
	})
	slices.SortStableFunc(pkgs, func(a, b string) int { return costs[b].seconds - costs[a].seconds })
	all := goTest("tests", cost{60, float64(runtime.NumCPU())},
		[]string{"-short", "-p", strconv.Itoa(3 * runtime.NumCPU())}, pkgs...)
	all.command = slices.DeleteFunc(all.command, func(arg string) bool { return arg == "-count=1" })
	all.env = []string{"GOGC=400"} // as in build; most of the time after a change is the compiler's
	stage := []job{all}
	for _, l := range checkLeaves {
		stage = append(stage, job{name: l.pattern, left: "left to make test: " + l.why})
	}
	return plan{stage}
}

// A leaf is packages, in go test's format, that only make test runs, with the reason.
type leaf struct{ pattern, why string }

var checkLeaves = []leaf{
	{"packaging", "a separate module with hundreds of packages of others"},
	{"proof/blame", "it plants delays, as root"},
	{"proof/browser", "it needs a browser"},
	{"proof/campaign", "it measures between network namespaces, as root"},
	{"proof/docs", "it runs the commands of the documentation, as root"},
	{"proof/lab/...", "it needs guests"},
	{"proof/mutate", "it mutates code in sandboxes, as root"},
	{"proof/peers/...", "they run other people's programs, as root"},
}

// labPlan is make lab: the guests of one card, or all guests, and what make test leaves out: the race detector, arm64,
// and booted packages. Two guests leave a quarter of the time of two cores, because kernels wait for timers. The rest
// gets that time, and no more (nice): a program that polls in a guest computes while it waits for others.
func labPlan(nic string) plan {
	flags := []string{"-skip", smoke}
	if nic != "" {
		flags = append(flags, "-run", "TestLab/"+nic+"|TestLab/^(xdp|afxdp)$/^"+nic)
	}
	guests := goTest("lab", cost{920, 0.7 * float64(runtime.NumCPU())}, flags, "proof/lab/...")
	guests.each, guests.env = true, []string{"GOGC=400"} // as in build: a fresh clone compiles the programs for the guests
	if nic != "" {
		return plan{{guests}}
	}
	rest := []job{
		race("race detector, drivers", 300, "nic/drivers/..."),
		race("race detector, kit and buses", 90, "polling", "nic/kit/...", "nic/bus/...", "proof/nictest/toy"),
		raceResponder(),
		plainResponder(),
		emulated("nic/bus/mmio", "cksum", "fastpath"),
		packaging("packaging", "packaging, booted", 180, "-run", boots),
		packaging("fleet/deploy/manifests", "fleet/deploy/manifests", 30),
		goTest("nic/drivers/mlx4 over vfio-user", cost{30, 0.5}, []string{"-run", vfioUser}, "nic/drivers/mlx4"),
		mixedTraffic(),
		build("./cmd/...", "arm64"),
	}
	for i := range rest {
		rest[i].command = append([]string{"nice"}, rest[i].command...)
		rest[i].env = append(rest[i].env, "GOGC=400")
	}
	return plan{append(rest, guests,
		job{name: "packaging/appliance", left: "left to make appliance-test: it fetches a kernel and boots machines for half an hour"},
		job{name: "fleet/discovery", left: "left to make discovery: a separate module that compiles for minutes without a warm cache"},
		job{name: "fleet/discovery/consul", left: "left to make servers: Consul compiles for minutes without a warm cache"},
		job{name: "fleet/cluster/telemetry", left: "left to make telemetry: a separate module that compiles for minutes without a warm cache"},
	)}
}

// flakyPlan is make flaky: each package count times, the lab only if it is chosen, and only tests with this name, if it
// is not empty.
func flakyPlan(pkgs []string, count int, name string, chosen []string) plan {
	var jobs []job
	for _, p := range pkgs {
		if len(chosen) == 0 && separately(p) || len(chosen) > 0 &&
			!slices.ContainsFunc(chosen, func(c string) bool { return matches(c, p) }) {
			continue
		}
		c, ok := costs[p]
		switch {
		case separately(p):
			c = cost{60, float64(runtime.NumCPU())}
		case !ok:
			c = cost{10, 1} // the longest of them, on a busy machine
		}
		c.seconds *= count
		flags := []string{"-count=" + strconv.Itoa(count)}
		if name != "" {
			flags = append(flags, "-run", name)
		}
		jobs = append(jobs, goTest(p, c, flags, p))
	}
	return plan{jobs}
}

// matches reports whether a pattern in go test's format names a package: ./nic/..., nic/kit.
func matches(pattern, pkg string) bool {
	pattern = path.Clean(pattern)
	below, all := strings.CutSuffix(pattern, "...")
	below = strings.TrimSuffix(below, "/")
	return pattern == pkg || all && (below == "" || below == pkg || strings.HasPrefix(pkg, below+"/"))
}
