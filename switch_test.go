package rebound_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The switch over fastpath.Match that answers a frame is written out in each Poll, since fusing and inlining it is the point.
// All copies are the same syntax tree as the one that fastpath's own tests and fuzzing go through, but for the names of their
// variables: no driver leaves a guard out or calls the leaves in another order.
func TestAnswerSwitches(t *testing.T) {
	const tested = "fastpath/snippet_test.go"
	type copied struct{ where, tree string }
	var want string
	var all []copied
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") && path != tested {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				s, ok := n.(*ast.SwitchStmt)
				switch {
				case !ok || !overMatch(s):
				case path == tested:
					want = canonical(s)
				default:
					all = append(all, copied{fmt.Sprintf("%s: %s", files.Position(s.Pos()), fn.Name.Name), canonical(s)})
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	polls := 0
	for _, c := range all {
		if strings.HasSuffix(c.where, ": Poll") {
			polls++
		}
		if c.tree != want {
			t.Errorf("%s has another switch than %s:\n%s\nwant\n%s", c.where, tested, c.tree, want)
		}
	}
	if polls < 5 || want == "" { // afpacket, afxdp, ena, ixgbe, mlx5, and those that come
		t.Errorf("%d Polls were found, and %q in %s: is the switch still over fastpath.Match?", polls, want, tested)
	}
}

// overMatch reports whether s is a switch that begins with k := fastpath.Match(...).
func overMatch(s *ast.SwitchStmt) bool {
	a, ok := s.Init.(*ast.AssignStmt)
	if !ok || len(a.Rhs) != 1 {
		return false
	}
	call, ok := a.Rhs[0].(*ast.CallExpr)
	if !ok {
		return false
	}
	name := call.Fun
	if sel, ok := name.(*ast.SelectorExpr); ok {
		name = sel.Sel
	}
	id, ok := name.(*ast.Ident)
	return ok && id.Name == "Match"
}

// canonical prints s with its variables named in the order in which they first appear, and without the package name of
// fastpath, in which one copy lies.
func canonical(s *ast.SwitchStmt) string {
	names := map[string]string{}
	rename := func(id *ast.Ident) {
		if ast.IsExported(id.Name) || id.Name == "nil" {
			return
		}
		if names[id.Name] == "" {
			names[id.Name] = fmt.Sprintf("v%d", len(names)+1)
		}
		id.Name = names[id.Name]
	}
	var strip func(n ast.Node) bool
	strip = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.ASSIGN && len(n.Lhs) == 1 { // the reply's length, in a variable of its own or in the frame's
				n.Lhs[0] = ast.NewIdent("Reply")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "fastpath" {
				x.Name = "_"
				return false
			}
			ast.Inspect(n.X, strip)
			return false
		case *ast.Ident:
			rename(n)
		}
		return true
	}
	ast.Inspect(s, strip)
	var b bytes.Buffer
	printer.Fprint(&b, token.NewFileSet(), s)
	return strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "_.", "")), " ")
}
