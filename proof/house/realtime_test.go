package house_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// realTime names the test files, or folders of them, that may sleep or compare elapsed time outside a bubble of
// testing/synctest, each with the reason. All other tests wait for a condition (package await) or run on virtual time.
var realTime = map[string]string{
	"fleet/cluster/":   "waits for Kubernetes",
	"fleet/discovery/": "waits for servers that it starts",
	"packaging/":       "waits for systemd and Prometheus on a real machine",
	"proof/lab/":       "waits for a guest",

	"proof/endtoend/net_test.go":            "a server that answers late",
	"proof/endtoend/explain_test.go":        "stops the responder for some time",
	"internal/bench/measure/models_test.go": "steps a fabric on virtual time, in a function that synctest.Test calls",
	"fleet/trace/trace_test.go":             "waits on virtual time, in functions that synctest.Test calls",
	"internal/host/metrics/flood_test.go":   "runs on virtual time, in functions that synctest.Test calls",
	"nic/drivers/efa/rig_test.go":           "the loop runs freely",
	"nic/drivers/ena/faults_test.go":        "the loop runs freely",
	"nic/drivers/mlx4/subnet_test.go":       "the fabric runs freely",
	"nic/drivers/mlx4/stations_test.go":     "sends a request again",
	"nic/drivers/mlx5/prove_test.go":        "runs on virtual time, in functions that synctest.Test calls",
	"nic/kit/life_test.go":                  "runs on virtual time, in functions that synctest.Test calls",
	"proof/nictest/toy_test.go":             "a driver, which the suite runs on virtual time",
	"proof/peers/baseline/baseline_test.go": "compares a C program's own time with the clock",
}

func TestTestsDoNotDependOnRealTime(t *testing.T) {
	used := map[string]bool{}
	must.OK(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		for _, at := range realTimeUses(f) {
			allowed := false
			for of := range realTime {
				if name == of || strings.HasSuffix(of, "/") && strings.HasPrefix(name, of) {
					used[of], allowed = true, true
				}
			}
			if !allowed {
				t.Errorf("%v: sleeps or bounds elapsed real time (wait for a condition with package await, or run in testing/synctest)", files.Position(at))
			}
		}
		return nil
	}))
	for of, why := range realTime {
		if !used[of] {
			t.Errorf("%s no longer needs real time (%s): remove it from the list", of, why)
		}
	}
}

// realTimeUses returns where a file calls time.Sleep, or compares elapsed time with a bound, outside of synctest.Test.
func realTimeUses(f *ast.File) (uses []token.Pos) {
	elapsed := map[string]bool{} // variables that hold the result of time.Since
	isCall := func(n ast.Node, pkg string, names ...string) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(names, sel.Sel.Name) {
			return false
		}
		id, ok := sel.X.(*ast.Ident)
		return ok && id.Name == pkg
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isCall(n, "synctest", "Test") {
				return false
			}
			if isCall(n, "time", "Sleep") {
				uses = append(uses, n.Pos())
			}
		case *ast.AssignStmt:
			for i, v := range n.Rhs {
				if id, ok := n.Lhs[i].(*ast.Ident); ok && isCall(v, "time", "Since") {
					elapsed[id.Name] = true
				}
			}
		case *ast.BinaryExpr:
			if !slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, n.Op) {
				break
			}
			for _, side := range []ast.Expr{n.X, n.Y} {
				ast.Inspect(side, func(e ast.Node) bool {
					id, ok := e.(*ast.Ident)
					if isCall(e, "time", "Since") || ok && elapsed[id.Name] {
						uses = append(uses, e.Pos())
					}
					return true
				})
			}
		}
		return true
	})
	return uses
}

func TestRealTimeUses(t *testing.T) {
	for _, c := range []struct {
		body string
		want int
	}{
		{"time.Sleep(1)", 1},
		{"for !ok() { time.Sleep(1) }", 1},
		{"synctest.Test(t, func(t *testing.T) { time.Sleep(1); if time.Since(x) > 1 {} })", 0},
		{"if time.Since(x) > time.Minute {}", 1},
		{"if d := time.Since(x); d >= bound {}", 1},
		{"if float64(time.Since(x)) < 3 {}", 1},
		{"t.Log(time.Since(x))", 0},
		{"d := time.Since(x); t.Log(d, a < b)", 0},
	} {
		f := must.Get(parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() { "+c.body+" }", 0))(t)
		if got := len(realTimeUses(f)); got != c.want {
			t.Errorf("%s: %d uses, want %d", c.body, got, c.want)
		}
	}
}
