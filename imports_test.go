package rebound_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// Who may import whom, by folder: the rows of the first pattern that matches. A pattern may stand for a single package
// ("cksum") or all below one ("cmd/..."). Only a package's own code is held to it: external tests may see both a driver
// and its model.
var imports = []struct {
	of, may string
}{
	{"rebound", ""}, // these tests
	{"cksum", ""},
	{"polling", ""},
	{"latency", "polling"},
	{"latency/host", ""},
	{"latency/report", "latency latency/host"},
	{"latency/compare", "latency latency/host latency/report"},
	{"latency/page", "latency latency/compare latency/report"},
	{"latency/synthetic", "latency latency/host latency/report"},
	{"latency/calibration", "latency/..."},
	{"fastpath", "cksum polling"},
	{"fastpath/oracle", ""}, // it judges what it must not share
	{"fastpath/corpus", "fastpath/oracle"},
	{"nic", "nic/bus fastpath polling"},
	{"nic/bus", ""},
	{"nic/bus/mmio", ""},
	{"nic/bus/dma", "nic/bus/mmio"},
	{"nic/bus/pci", "nic/bus nic/bus/dma nic/bus/mmio"},
	{"nic/kit", "nic nic/bus/dma nic/bus/pci"},
	{"nic/kit/netif", "nic"},
	{"nic/kit/amazonadmin", "nic nic/kit nic/bus/dma nic/bus/mmio"},
	{"nic/bus/vfiouser/proto", ""},
	{"nic/bus/vfiouser", "nic/bus nic/bus/dma nic/bus/mmio nic/bus/pci nic/bus/vfiouser/proto"},
	{"nic/sim", "nic nic/bus/dma nic/bus/mmio nic/bus/pci cksum"},
	{"nic/sim/vfioserver", "nic/sim nic/bus/vfiouser/proto"},
	{"nic/sim/kit", "nic/sim"},
	{"nic/sim/simtest", "nic/sim nic/bus/dma nic/bus/mmio"},
	{"nic/sim/rdma", ""},
	{"nic/sim/...", "nic/sim nic/sim/kit nic/sim/rdma cksum"},
	{"nic/nictest", "nic nic/... fastpath cksum polling"},
	{"nic/nictest/toy", "nic nic/kit nic/bus/pci nic/bus/dma nic/bus/mmio fastpath polling"}, // a driver, the template
	{"nic/lab", "nic nic/... fastpath cksum polling"},
	{"nic/lab/boot", ""},
	{"nic/lab/bootd", "nic/lab/boot"},
	{"nic/lab/judge", "fastpath fastpath/corpus"},
	{"nic/afpacket", "nic nic/kit/netif nic/bus/mmio fastpath cksum polling"},
	{"nic/kit/xdpkit", "nic nic/kit/netif fastpath"},
	{"nic/afxdp", "nic nic/kit/netif nic/kit/xdpkit nic/bus/mmio fastpath cksum polling"},
	{"nic/xdp", "nic nic/kit/netif nic/kit/xdpkit fastpath polling"},
	{"nic/ib", "cksum"},
	{"nic/mlx4", "nic nic/kit nic/kit/netif nic/ib nic/bus/pci nic/bus/dma nic/bus/mmio fastpath cksum polling"},
	{"nic/...", "nic nic/kit nic/kit/amazonadmin nic/kit/netif nic/bus/pci nic/bus/dma nic/bus/mmio fastpath cksum polling"}, // a driver on the device itself
	{"cmd/...", "..."},
}

// The module outside of the standard library that packages below nic/bus may use, and nothing more.
const lowLevel = "golang.org/x/sys"

func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; seen++ {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name, _ := strings.CutPrefix(p.ImportPath, "rebound/")
		i := slices.IndexFunc(imports, func(r struct{ of, may string }) bool { return match(r.of, name) })
		if i < 0 {
			t.Errorf("%s: no rule says what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, "rebound/")
			switch {
			case !ours && match("nic/bus/...", name) && strings.Contains(imp, ".") && !strings.HasPrefix(imp, lowLevel):
				t.Errorf("%s imports %s; it may import %s only", name, imp, lowLevel)
			case ours && !slices.ContainsFunc(strings.Fields(imports[i].may), func(m string) bool { return match(m, dep) }) &&
				!strings.HasPrefix(dep, name+"/"):
				t.Errorf("%s imports %s; it may import: %s", name, dep, imports[i].may)
			}
		}
	}
	if seen < 10 {
		t.Errorf("go list named %d packages", seen)
	}
}

// The responder and bench drive cards, and models that other processes serve: they link no model themselves.
func TestNoSimulatorIsLinked(t *testing.T) {
	for _, cmd := range []string{"./cmd/responder", "./cmd/bench"} {
		out, err := exec.Command("go", "list", "-deps", cmd).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", cmd, err)
		}
		deps := strings.Fields(string(out))
		if !slices.Contains(deps, "rebound/nic") {
			t.Errorf("%s does not have package nic among its %d dependencies", cmd, len(deps))
		}
		for _, d := range deps {
			if match("nic/sim/...", strings.TrimPrefix(d, "rebound/")) {
				t.Errorf("%s links %s", cmd, d)
			}
		}
	}
}

func match(pattern, name string) bool {
	if below, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(name+"/", below)
	}
	ok, _ := path.Match(pattern, name)
	return ok
}
