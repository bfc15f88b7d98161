package nictest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// HotLoop fails the test if function fn of package pkg ("(*Queue).Poll" of
// "github.com/rebound-nic/rebound/nic/drivers/ixgbe") violates the rules of a polling loop. According to the compiler's
// inlining report, every leaf of fastpath that fn calls must be inlined into it. According to its machine code, it must
// only call functions in allowedCalls.
//
// An allowed call has the linker's name, with as much of the import path as makes it unique: "mmio.(*Window).Store32",
// "github.com/rebound-nic/rebound/polling.TSC", "runtime.panicIndex". "indirect" stands for calls through a register:
// interfaces, closures, function values. fastpath's own functions and the stack check need not be listed; the functions
// called by bounds checks must be, so that a bounds check in a loop is visible.
func HotLoop(t testing.TB, pkg, fn string, allowedCalls ...string) {
	t.Helper()
	needs.Long(t) // it compiles and disassembles the package
	problems := must.Get(inspect(pkg, fn, allowedCalls))(t)
	for _, p := range problems {
		t.Errorf("%s.%s: %s", pkg, fn, p)
	}
}

// inspect describes the rule violations of a function.
func inspect(pkg, fn string, allowed []string) ([]string, error) {
	leaves, err := leafNames()
	if err != nil {
		return nil, err
	}
	calls, err := leafCalls(pkg, fn, leaves)
	if err != nil {
		return nil, err
	}
	inlined, err := inlinedCalls(pkg)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, c := range calls {
		if n := slices.Index(inlined, c); n < 0 {
			problems = append(problems, fmt.Sprintf("%s:%d: fastpath's %s is not inlined", c.file, c.line, c.name))
		} else {
			inlined = slices.Delete(inlined, n, n+1) // the same leaf may be called twice in a line
		}
	}
	made, err := machineCalls(pkg, fn)
	if err != nil {
		return nil, err
	}
	allowed = append([]string{"fastpath.(*Responder).Reply", "fastpath.(*Responder).Slow",
		"fastpath.(*Responder).depart",
		"runtime.morestack", "runtime.morestack_noctxt"}, allowed...)
	for _, c := range made {
		if !slices.ContainsFunc(allowed, func(a string) bool {
			return c.name == a ||
				strings.HasSuffix(c.name, "/"+a)
		}) {
			problems = append(problems, fmt.Sprintf("%s:%d: the machine code calls %s", c.file, c.line, c.name))
		}
	}
	return problems, nil
}

// callSite is the position of a call; its file has no folder.
type callSite struct {
	file string
	line int
	name string
}

// goTool runs the go command in the module and returns both output streams. Its messages about downloads are in the
// second. Successful results are cached: a package has several functions to check, and the output is the same for all
// of them.
func goTool(args ...string) (stdout, stderr string, err error) {
	type output struct{ out, said string }
	key := strings.Join(args, " ")
	if o, ok := toolRuns.Load(key); ok {
		return o.(output).out, o.(output).said, nil
	}
	var out, said strings.Builder
	for try := 0; ; try++ {
		out.Reset()
		said.Reset()
		c := exec.Command("go", args...)
		c.Stdout, c.Stderr = &out, &said
		err := c.Run()
		if err == nil {
			break
		}
		// Two go commands that both find no objdump in the build cache build it concurrently, and one may still be
		// writing the file that the other runs.
		if try == 10 || !strings.Contains(said.String(), "text file busy") {
			return "", "", fmt.Errorf("go %s: %w\n%s", key, err, said.String())
		}
	}
	toolRuns.Store(key, output{out.String(), said.String()})
	return out.String(), said.String(), nil
}

var toolRuns sync.Map // in this process: the command line, and its output

// sources parses the files of pkg that this platform compiles.
func sources(pkg string) (*token.FileSet, []*ast.File, error) {
	out, _, err := goTool("list", "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, pkg)
	if err != nil {
		return nil, nil, err
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range strings.Fields(out) {
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	return set, files, nil
}

// leafNames returns the names of fastpath's leaves: the functions declared in its leaf.go.
func leafNames() (map[string]bool, error) {
	set, files, err := sources("github.com/rebound-nic/rebound/fastpath")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, f := range files {
		if filepath.Base(set.Position(f.Pos()).Filename) != "leaf.go" {
			continue
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				names[d.Name.Name] = true
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("package fastpath has no leaves in leaf.go")
	}
	return names, nil
}

// leafCalls returns the calls of leaves in the source of fn. A call of another package's function with the same name as
// a leaf counts too: it should be inlined as well.
func leafCalls(pkg, fn string, leaves map[string]bool) ([]callSite, error) {
	set, files, err := sources(pkg)
	if err != nil {
		return nil, err
	}
	var calls []callSite
	found := false
	for _, f := range files {
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || declared(d) != fn {
				continue
			}
			found = true
			ast.Inspect(d, func(n ast.Node) bool {
				if n, ok := n.(*ast.CallExpr); ok {
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && leaves[s.Sel.Name] {
						p := set.Position(s.Sel.Pos())
						calls = append(calls, callSite{filepath.Base(p.Filename), p.Line, s.Sel.Name})
					}
				}
				return true
			})
		}
	}
	if !found {
		return nil, fmt.Errorf("package %s has no function %s", pkg, fn)
	}
	return calls, nil
}

// declared returns a function's name in the linker's form, without the package.
func declared(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	switch t := d.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if id, ok := t.X.(*ast.Ident); ok {
			return "(*" + id.Name + ")." + d.Name.Name
		}
	case *ast.Ident:
		return t.Name + "." + d.Name.Name
	}
	return ""
}

var inliningLine = regexp.MustCompile(`(?m)^\S*?([^/\s:]+\.go):(\d+):\d+: inlining call to (\S+)$`)

// inlinedCalls returns the calls in pkg that the compiler reports as inlined, by the last part of their names.
func inlinedCalls(pkg string) ([]callSite, error) {
	_, out, err := goTool("build", "-gcflags=-m=2", pkg)
	if err != nil {
		return nil, err
	}
	var calls []callSite
	for _, m := range inliningLine.FindAllStringSubmatch(out, -1) {
		c := callSite{file: m[1], name: m[3][strings.LastIndexByte(m[3], '.')+1:]}
		fmt.Sscan(m[2], &c.line)
		calls = append(calls, c)
	}
	return calls, nil
}

// An instruction as objdump prints it for an archive: position, address, bytes, and the relocation.
var callLine = regexp.MustCompile(`(?m)^\s*(\S+\.(?:go|s)):(\d+)\s+0x[0-9a-f]+\s+[0-9a-f]+\s+(?:CALL|BL)\b\s*(.*)$`)
var callTarget = regexp.MustCompile(`R_CALL(?:ARM64)?:([^\s<]+)`)

// machineCalls returns every call instruction in the compiled function.
func machineCalls(pkg, fn string) ([]callSite, error) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("no call instructions known for %s", runtime.GOARCH)
	}
	out, err := machineCode(pkg, fn)
	if err != nil {
		return nil, err
	}
	var calls []callSite
	for _, m := range callLine.FindAllStringSubmatch(out, -1) {
		c := callSite{file: m[1], name: "indirect"}
		fmt.Sscan(m[2], &c.line)
		if t := callTarget.FindStringSubmatch(m[3]); t != nil {
			c.name = t[1]
		}
		calls = append(calls, c)
	}
	return calls, nil
}

// machineCode returns the disassembly of a function, as go tool objdump prints it for the package's archive.
func machineCode(pkg, fn string) (string, error) {
	path, _, err := goTool("list", "-f", "{{.ImportPath}}", pkg)
	if err != nil {
		return "", err
	}
	archive, _, err := goTool("list", "-export", "-f", "{{.Export}}", pkg)
	if err != nil {
		return "", err
	}
	symbol := strings.TrimSpace(path) + "." + fn
	out, _, err := goTool("tool", "objdump", "-s", "^"+regexp.QuoteMeta(symbol)+"$", strings.TrimSpace(archive))
	if err != nil {
		return "", err
	}
	if !strings.Contains(out, "TEXT "+symbol) {
		return "", fmt.Errorf("package %s has no machine code for %s", pkg, fn)
	}
	return out, nil
}

var stackOperand = regexp.MustCompile(`(?m)^\s*\S+\.go:\d+\s.*\(SP\)`)

// StackAccesses fails the test if the machine code of a function accesses the stack in more than most places: each is a
// value that did not fit into the registers and is spilled or reloaded. This shows the effect of a new compiler or an
// unfortunate change before a benchmark does; increase the number only after measuring. It supports amd64 only.
func StackAccesses(t testing.TB, pkg, fn string, most int) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Logf("stack accesses of %s are not counted on %s", fn, runtime.GOARCH)
		return
	}
	needs.Long(t) // as HotLoop
	code := must.Get(machineCode(pkg, fn))(t)
	if n := len(stackOperand.FindAllString(code, -1)); n > most {
		t.Errorf("%s.%s: %d stack accesses, want at most %d", pkg, fn, n, most)
	} else {
		t.Logf("%s.%s: %d stack accesses of at most %d", pkg, fn, n, most)
	}
}
