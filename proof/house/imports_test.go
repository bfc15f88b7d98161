package house_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const module = "github.com/rebound-nic/rebound"

// imports says who may import whom, by folder: the first matching pattern counts. A pattern names one package ("cksum")
// or everything below a folder ("cmd/..."). Every package may import packages below itself. Only a package's own code
// is checked: external tests may see both a driver and its model.
var imports = []struct {
	of, may string
}{
	{"cksum", ""},
	{"polling", ""},
	{"latency/...", "latency/... polling"},
	{"fastpath", "cksum polling"},
	{"nic/bus/...", "nic/bus/..."},
	{"nic", "nic/bus fastpath polling"},
	{"nic/kit/...", "nic nic/kit/... nic/bus/... fastpath cksum polling"},
	{"nic/ib", "cksum"},
	{"nic/drivers/...", "nic nic/kit/... nic/ib nic/bus/pci nic/bus/verbs/... nic/bus/dma nic/bus/mmio fastpath cksum polling"}, // no other driver
	{"internal/cards", "internal/host/... nic/..."}, // alone names drivers, but for the program in the kernel, which responder shows
	{"internal/responder", "internal/... nic/bus/... nic/kit/... nic nic/drivers/xdp latency/... fastpath cksum polling"},
	{"internal/...", "internal/... nic/bus/... nic/kit/... nic nic/ib latency/... fastpath cksum polling"},
	{"fleet/...", "fleet/... internal/bench/... internal/cards internal/host/... latency/... nic nic/kit/netif fastpath polling"},
	{"cmd/responder", "internal/responder"},
	{"cmd/watch", "fleet"},
	{"cmd/bench", "internal/bench"},
	{"sim/...", "sim/... nic nic/bus/... cksum"}, // no driver
	{"proof/oracle", ""},           // shares nothing with the code that it judges
	{"proof/catalogue", "sim/..."}, // refers to drivers by name: simnic links none
	{"proof/...", "..."},
	{"cmd/...", "..."},
}

// The module outside of the standard library that packages below nic/bus may use, and nothing more.
const lowLevel = "golang.org/x/sys"

type listed struct {
	ImportPath    string
	Imports, Deps []string
}

// list is the module's packages, as go list prints them.
var list = sync.OnceValues(func() (all []listed, err error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	for dec := json.NewDecoder(bytes.NewReader(out)); err == nil && dec.More(); {
		all = append(all, listed{})
		err = dec.Decode(&all[len(all)-1])
	}
	return all, err
})

// links returns the packages that a program links.
func links(t *testing.T, program string) []string {
	all := must.Get(list())(t)
	i := slices.IndexFunc(all, func(p listed) bool { return p.ImportPath == module+"/cmd/"+program })
	if i < 0 {
		t.Fatalf("go list did not name the program %s", program)
	}
	return all[i].Deps
}

func TestImports(t *testing.T) {
	needs.Tree(t)
	all := must.Get(list())(t)
	for _, p := range all {
		name, _ := strings.CutPrefix(p.ImportPath, module+"/")
		if name == module {
			continue // these tests
		}
		i := slices.IndexFunc(imports, func(r struct{ of, may string }) bool { return match(r.of, name) })
		if i < 0 {
			t.Errorf("%s: no rule says what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			switch {
			case !ours && match("nic/bus/...", name) && strings.Contains(imp, ".") && !strings.HasPrefix(imp, lowLevel):
				t.Errorf("%s imports %s; it may import %s only", name, imp, lowLevel)
			case ours && !slices.ContainsFunc(strings.Fields(imports[i].may),
				func(m string) bool { return match(m, dep) }) &&
				!strings.HasPrefix(dep, name+"/"):
				t.Errorf("%s imports %s; it may import: %s", name, dep, imports[i].may)
			}
		}
	}
	if len(all) < 10 {
		t.Errorf("go list named %d packages", len(all))
	}
}

func TestProductLinksNoModelAndNoProof(t *testing.T) {
	for _, cmd := range []string{"responder", "bench", "watch"} {
		deps := links(t, cmd)
		if !slices.Contains(deps, module+"/nic") {
			t.Errorf("%s does not have package nic among its %d dependencies", cmd, len(deps))
		}
		for _, d := range deps {
			if below := strings.TrimPrefix(d, module+"/"); match("sim/...", below) || match("proof/...", below) {
				t.Errorf("%s links %s", cmd, d)
			}
		}
	}
}

// A responder and a bench have none of a fleet's dependencies.
func TestProductsAreApart(t *testing.T) {
	foreign := []string{module + "/fleet", "github.com/prometheus/client_golang", "go.opentelemetry.io"}
	for cmd, fleet := range map[string]bool{"responder": false, "bench": false, "watch": true} {
		deps := links(t, cmd)
		for _, f := range foreign {
			i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, f) })
			switch {
			case i >= 0 && !fleet:
				t.Errorf("%s links %s", cmd, deps[i])
			case i < 0 && fleet:
				t.Errorf("%s links nothing of %s: the rule for the other programs checks nothing", cmd, f)
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
