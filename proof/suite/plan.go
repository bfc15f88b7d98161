package main

import (
	"fmt"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A cost is what a package's tests take on a quiet machine with two cores: make times prints the measured values. A package with a
// polling loop counts as a whole core, one that mostly waits as none.
type cost struct {
	seconds int
	cores   float64
}

// costs are those of the packages that take longest. The packages that are not here share two jobs, one after the other in each.
var costs = map[string]cost{
	"fastpath":                  {20, 1},
	"internal/bench":            {70, 1},
	"internal/bench/clockerror": {48, 0},
	"internal/bench/engine":     {17, 1},
	"internal/bench/hook":       {13, 0},
	"internal/responder":        {67, 1},
	"latency/page":              {11, 1},
	"nic/drivers/afpacket":      {15, 1},
	"nic/drivers/afxdp":         {10, 1},
	"nic/drivers/efa":           {41, 1},
	"nic/drivers/ena":           {42, 1},
	"nic/drivers/ixgbe":         {22, 1},
	"nic/drivers/mlx4":          {50, 1},
	"nic/drivers/mlx5":          {40, 1},
	"nic/drivers/virtio":        {20, 1},
	"nic/drivers/xdp":           {32, 1},
	"proof/campaign":            {30, 1},
	"proof/nictest":             {11, 1},
}

// separately are the packages that are not among the others: the lab, which has its own jobs.
func separately(pkg string) bool { return pkg == "proof/lab" || strings.HasPrefix(pkg, "proof/lab/") }

// packages lists those of the module that have tests, without the module's name.
func packages() ([]string, error) {
	out, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []string
	for _, p := range strings.Fields(string(out)) {
		all = append(all, short(p, ""))
	}
	return all, nil
}

// goTest is a job that tests packages. Its limit leaves room for a machine ten times as busy.
func goTest(name string, c cost, flags []string, pkgs ...string) job {
	limit := 5*time.Minute + 10*time.Duration(c.seconds)*time.Second
	args := []string{"go", "test", "-json", "-vet=off", "-count=1", "-p", "1", "-timeout", limit.String()} // vet is its own step
	for i, p := range pkgs {
		pkgs[i] = "./" + strings.TrimPrefix(p, "./")
	}
	// The runner's own limit is for a test process that does not end even so.
	return job{name: name, command: slices.Concat(args, flags, pkgs), test: true, seconds: c.seconds, cores: c.cores, limit: limit + time.Minute}
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
			jobs = append(jobs, goTest(p, c, flags, p))
		} else {
			small = append(small, p)
		}
	}
	// Two jobs, so that the rest does not wait for one of them.
	half := (len(small) + 1) / 2
	for i, part := range [][]string{small[:half], small[half:]} {
		if len(part) > 0 {
			jobs = append(jobs, goTest(fmt.Sprintf("other packages, part %d", i+1), cost{45, 1}, flags, part...))
		}
	}
	return jobs
}

// vet are the steps before the tests. They fill the build cache.
func vet() []job {
	step := func(name string, env []string, command ...string) job {
		return job{name: name, env: env, command: command, seconds: 60, cores: float64(runtime.NumCPU()), limit: 20 * time.Minute}
	}
	arm := []string{"GOARCH=arm64"}
	return []job{
		step("vet", nil, "go", "vet", "./..."),
		step("vet (arm64)", arm, "go", "vet", "./..."),
		step("vet packaging", nil, "go", "-C", "packaging", "vet", "./..."),
	}
}

// build are the steps that build every program for both architectures.
func build() []job {
	var jobs []job
	for _, arch := range []string{"amd64", "arm64"} {
		jobs = append(jobs, job{name: "build (" + arch + ")", env: []string{"GOARCH=" + arch}, command: []string{"go", "build", "./..."},
			seconds: 30, cores: float64(runtime.NumCPU()), limit: 20 * time.Minute})
	}
	return jobs
}

// raced are the packages in which goroutines meet: polling loops, their watchdogs, and readers of their counters.
var raced = strings.Fields(`polling nic/kit/... nic/bus/... nic/drivers/... proof/nictest/toy internal/responder`)

// race tests packages under the race detector, which needs cgo and does not see DMA memory. A conformance suite takes minutes under
// it; the tests of faults take the same paths.
func race(pkgs ...string) job {
	seconds := 0
	for _, p := range pkgs {
		if seconds += 20; strings.HasSuffix(p, "...") {
			seconds += 60
		}
	}
	j := goTest("race detector", cost{seconds, 1}, []string{"-race", "-skip", "Conformance|TestEveryID|HotLoop|TestCorpus|TestMutations"},
		slices.Clone(pkgs)...)
	j.env, j.variant, j.needs = []string{"CGO_ENABLED=1"}, "race", "cc"
	return j
}

// emulated tests packages for arm64, 20 times as slow: of the mutations of a frame only every fifth (-short).
func emulated(flags []string, pkgs ...string) job {
	j := goTest("arm64 emulation", cost{60, 1}, slices.Concat([]string{"-short", "-exec", "qemu-aarch64-static"}, flags), pkgs...)
	j.env, j.variant, j.needs = []string{"GOARCH=arm64"}, "arm64", "qemu-aarch64-static"
	return j
}

// Names of tests, as -run and -skip take them.
const (
	boots = "^(TestContainer|TestMesh|TestScrape|TestReproducible)$"                     // of packaging, in make lab
	smoke = "^TestLabSmoke$"                                                             // of proof/lab, in make test
	long  = "^(TestSingleByteMutations|TestRandomMutations|TestReflectorAgainstOracle)$" // of fastpath, emulated in make lab
)

func packaging(name string, seconds int, flags ...string) job {
	j := goTest(name, cost{seconds, 1}, flags, ".")
	j.dir, j.variant = "packaging", "packaging"
	return j
}

// A plan is what a command runs: stages, each after the one before.
type plan [][]job

// testPlan is make test: all packages, and a part of what make lab runs in full.
func testPlan(pkgs []string) plan {
	purego := goTest("pure Go", cost{5, 1}, []string{"-tags", "purego"}, "nic/bus/mmio")
	purego.variant = "purego"
	return plan{vet(), append(tests(pkgs),
		purego,
		race("polling", "nic/kit/...", "nic/drivers/ixgbe", "proof/nictest/toy"),
		emulated([]string{"-skip", long}, "nic/bus/mmio", "cksum", "fastpath"),
		packaging("packaging", 120, "-skip", boots),
		goTest("lab, without guests", cost{10, 1}, []string{"-short", "-skip", smoke}, "proof/lab/..."),
		goTest("lab, smoke", cost{90, 1.5}, []string{"-run", smoke}, "proof/lab"),
	)}
}

// checkPlan is make check: what needs neither root nor a network.
func checkPlan(pkgs []string) plan {
	return plan{slices.Concat(vet(), build()), append(tests(pkgs, "-short"),
		goTest("lab, without guests", cost{10, 1}, []string{"-short", "-skip", smoke}, "proof/lab/..."))}
}

// labPlan is make lab: one card's guests, or all guests and the full length of what make test takes a part of.
func labPlan(nic, parallel string) plan {
	flags := []string{"-parallel", parallel, "-skip", smoke}
	if nic != "" {
		flags = append(flags, "-run", "TestLab/"+nic+"|TestLab/^(xdp|afxdp)$/^"+nic)
	}
	guests := goTest("lab", cost{330, float64(runtime.NumCPU())}, flags, "proof/lab/...")
	guests.each = true
	if nic != "" {
		return plan{{guests}}
	}
	return plan{{guests}, {
		race(raced...),
		emulated(nil, "nic/bus/mmio", "cksum", "fastpath"),
		packaging("packaging, booted", 180, "-run", boots),
	}}
}

// flakyPlan is make flaky: each package outside of the lab, 20 times.
func flakyPlan(pkgs []string, count string, chosen []string) plan {
	var jobs []job
	for _, p := range pkgs {
		if separately(p) || len(chosen) > 0 && !slices.ContainsFunc(chosen, func(c string) bool { return matches(c, p) }) {
			continue
		}
		c, ok := costs[p]
		if !ok {
			c = cost{2, 1}
		}
		c.seconds *= 20
		jobs = append(jobs, goTest(p, c, []string{"-count=" + count}, p))
	}
	return plan{jobs}
}

// matches reports whether a pattern as go test takes it names a package: ./nic/..., nic/kit.
func matches(pattern, pkg string) bool {
	pattern = path.Clean(pattern)
	below, all := strings.CutSuffix(pattern, "...")
	below = strings.TrimSuffix(below, "/")
	return pattern == pkg || all && (below == "" || below == pkg || strings.HasPrefix(pkg, below+"/"))
}
