// Package vet type-checks a whole module for one architecture, tests included, and applies go vet's analyzers.
//
// go vet compiles every package and starts a process for each. This package compiles nothing: it reads all sources
// once, and of other modules only the declarations, so it needs a tenth of the CPU time. Unlike go vet, it does not
// know which functions of other modules format text or never return.
package vet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/passes/scannererr"
	"golang.org/x/tools/go/analysis/passes/sqlrowserr"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

// analyzers are those of go vet in the Go release that builds the project.
var analyzers = slices.DeleteFunc(slices.Clone(vet.Suite), func(a *analysis.Analyzer) bool {
	return a == scannererr.Analyzer || a == sqlrowserr.Analyzer
})

// A listed package is go list's output for it.
type listed struct {
	ImportPath, Dir, Name, ForTest                     string
	GoFiles, SFiles, IgnoredGoFiles, IgnoredOtherFiles []string
	Imports                                            []string
	ImportMap                                          map[string]string
	Module                                             *packages.Module
}

// Check returns the findings in the module in dir for each architecture, one per line, ordered by file and line. A
// finding has the file's full name. The types of all packages are checked for each architecture; the analyzers see a
// package again only if it has other files there than for an architecture before it, or assembly.
func Check(dir string, archs ...string) ([]string, error) {
	m := &module{set: token.NewFileSet(), parsed: map[string]*ast.File{}, analyzed: map[string]bool{},
		found: map[string]token.Position{}}
	for _, arch := range archs {
		if err := m.load(dir, arch); err != nil {
			return nil, err
		}
		if len(m.found) == 0 { // analyzers require programs that compile
			if err := m.analyze(); err != nil {
				return nil, err
			}
		}
	}
	return slices.SortedFunc(maps.Keys(m.found), func(a, b string) int {
		x, y := m.found[a], m.found[b]
		return cmp.Or(cmp.Compare(x.Filename, y.Filename), cmp.Compare(x.Offset, y.Offset), cmp.Compare(a, b))
	}), nil
}

// load checks the types of all packages for an architecture.
func (m *module) load(dir, arch string) error {
	all, err := list(dir, arch)
	if err != nil {
		return err
	}
	m.arch, m.packages = arch, map[string]*packages.Package{}
	m.others = map[string]*types.Package{"unsafe": types.Unsafe}
	for _, p := range all {
		switch own := p.Module != nil && p.Module.Main; {
		case p.ImportPath == "unsafe": // has no declarations
		case !own:
			err = m.declare(p)
		case !strings.HasSuffix(p.ImportPath, ".test"): // skip a generated main package
			err = m.check(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// analyze applies the analyzers to the packages that they have not seen with the same files. A package with tests in it
// is seen only together with them.
func (m *module) analyze() error {
	build.Default.GOARCH = m.arch // some analyzers read it
	var roots []*packages.Package
	for id, p := range m.packages {
		withTests := fmt.Sprintf("%s [%s.test]", p.PkgPath, strings.TrimSuffix(p.PkgPath, "_test"))
		if id != withTests && (id != p.PkgPath || m.packages[withTests] != nil) { // or it has the files of another one
			continue
		}
		files := id + ": " + strings.Join(p.GoFiles, " ")
		if !m.analyzed[files] || len(p.OtherFiles) > 0 {
			m.analyzed[files] = true
			roots = append(roots, p)
		}
	}
	graph, err := checker.Analyze(analyzers, roots, nil)
	if err != nil {
		return err
	}
	for a := range graph.All() {
		if a.Err != nil {
			return fmt.Errorf("%v: %w", a, a.Err)
		}
		for _, d := range a.Diagnostics {
			m.report(d.Pos, d.Message)
		}
	}
	return nil
}

// list returns the module's packages, their tests, and what these import, each package after its imports.
func list(dir, arch string) (all []listed, err error) {
	cmd := exec.Command("go", "list",
		"-json=ImportPath,Dir,Name,ForTest,GoFiles,SFiles,IgnoredGoFiles,IgnoredOtherFiles,Imports,ImportMap,Module",
		"-deps", "-test", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, said.String())
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// A module is the state of one check.
type module struct {
	set      *token.FileSet
	parsed   map[string]*ast.File
	analyzed map[string]bool // packages with their files
	found    map[string]token.Position

	// for one architecture
	arch   string
	others map[string]*types.Package // of other modules, without the bodies of functions
	// by go list's ImportPath, which distinguishes a package from its variant with tests
	packages map[string]*packages.Package
}

func (m *module) report(at token.Pos, text string) {
	p := m.set.Position(at)
	m.found[fmt.Sprintf("%s: %s", p, text)] = p
}

// files parses files, each once.
func (m *module) files(names []string, mode parser.Mode) (all []*ast.File, err error) {
	for _, name := range names {
		if m.parsed[name] == nil {
			if m.parsed[name], err = parser.ParseFile(m.set, name, nil, mode|parser.SkipObjectResolution); err != nil {
				return nil, err
			}
		}
		all = append(all, m.parsed[name])
	}
	return all, nil
}

// declare reads the declarations of another module's package.
func (m *module) declare(l listed) error {
	files, err := m.files(l.absolute(l.GoFiles), 0)
	if err != nil {
		return err
	}
	for _, f := range files {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				d.Body = new(ast.BlockStmt) // which is ignored
			}
		}
	}
	config := types.Config{Sizes: types.SizesFor("gc", m.arch), IgnoreFuncBodies: true, DisableUnusedImportCheck: true,
		Importer: importerFunc(func(path string) (*types.Package,
			error) {
			return m.other(cmp.Or(l.ImportMap[path], path))
		})}
	if l.Module != nil && l.Module.GoVersion != "" {
		config.GoVersion = "go" + l.Module.GoVersion
	}
	p, err := config.Check(l.ImportPath, m.set, files, nil)
	if err != nil {
		return err
	}
	m.others[l.ImportPath] = p
	return nil
}

func (m *module) other(id string) (*types.Package, error) {
	if p := m.others[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("go list did not print %s", id)
}

func (l listed) absolute(names []string) (all []string) {
	for _, n := range names {
		all = append(all, filepath.Join(l.Dir, n))
	}
	return all
}

func (m *module) check(l listed) error {
	path, _, _ := strings.Cut(l.ImportPath, " ")
	p := &packages.Package{ID: l.ImportPath, Name: l.Name, PkgPath: path, Module: l.Module, Fset: m.set,
		TypesSizes: types.SizesFor("gc", m.arch),
		GoFiles:    l.absolute(l.GoFiles), OtherFiles: l.absolute(l.SFiles),
		IgnoredFiles: l.absolute(append(l.IgnoredGoFiles, l.IgnoredOtherFiles...)),
		Imports:      map[string]*packages.Package{}}
	var err error
	if p.Syntax, err = m.files(p.GoFiles, parser.ParseComments); err != nil {
		return err
	}
	p.TypesInfo = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Instances: map[*ast.Ident]types.Instance{},
		Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Implicits: map[ast.Node]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
		Scopes:     map[ast.Node]*types.Scope{}, FileVersions: map[*ast.File]string{}}
	config := types.Config{
		Sizes: p.TypesSizes, GoVersion: "go" + l.Module.GoVersion,
		Error: func(err error) { m.report(err.(types.Error).Pos, err.(types.Error).Msg) },
		Importer: importerFunc(func(path string) (*types.Package, error) {
			id := cmp.Or(l.ImportMap[path], path)
			if d := m.packages[id]; d != nil {
				p.Imports[path] = d
				return d.Types, nil
			}
			return m.other(id)
		}),
	}
	p.Types, _ = config.Check(path, m.set, p.Syntax, p.TypesInfo) // its errors are already reported
	m.packages[l.ImportPath] = p
	return nil
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
