package house_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// datagrams has a Poll whose frames have no Ethernet header. Those that it builds one for go to Reply; slow builds one
// for all others, and calls Slow.
const datagrams = "nic/drivers/mlx4/datagram.go"

// Every frame is answered by the same two calls, Reply and then Slow for what that turned down: the pair that
// fastpath's own tests and fuzzing go through. No Poll makes one without the other, or hands them other frames; and
// each calls Departing, without which test packets have no time of sending.
func TestAnswerCalls(t *testing.T) {
	polls := 0
	must.OK(t, filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			filepath.Dir(path) == "fastpath" {
			return err
		}
		files := token.NewFileSet()
		source := must.Get(os.ReadFile(path))(t)
		f, err := parser.ParseFile(files, path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || fn.Name.Name != "Poll" &&
				!bytes.Contains(source[fn.Body.Pos()-f.FileStart:fn.Body.End()-f.FileStart], []byte("r.Reply(h")) {
				continue
			}
			pairs := 0
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if s, ok := n.(*ast.IfStmt); ok && isPair(s) {
					pairs++
				}
				return true
			})
			if path == datagrams && fn.Name.Name == "Poll" {
				if count(fn.Body, "Reply") != 1 || count(fn.Body, "slow") != 1 {
					t.Errorf("%s: want one call of Reply and one of slow, which calls Slow", files.Position(fn.Pos()))
				}
				continue
			}
			if calls := count(fn.Body, "Reply") + count(fn.Body, "Slow"); calls != 2*pairs {
				t.Errorf("%s: %s has %d calls of Reply and Slow, and %d pairs of them", files.Position(fn.Pos()),
					fn.Name.Name, calls, pairs)
			}
			if fn.Name.Name == "Poll" && pairs == 1 {
				polls++
				if count(fn.Body, "Departing") == 0 {
					t.Errorf("%s: Poll does not call Departing", files.Position(fn.Pos()))
				}
			}
		}
		return nil
	}))
	if polls < 7 { // afpacket, afxdp, ena, ixgbe, mlx4, mlx5, virtio, and those that come
		t.Errorf("%d Polls were found", polls)
	}
}

// isPair reports whether s is "if !r.Reply(h, n) { m = r.Slow(h, n) }", or the same with an if within that looks at the
// reply's length, and perhaps more behind it.
func isPair(s *ast.IfStmt) bool {
	not, ok := s.Cond.(*ast.UnaryExpr)
	if !ok || not.Op != token.NOT || len(s.Body.List) == 0 || s.Else != nil {
		return false
	}
	first := text(not.X)
	reply, ok := s.Body.List[0].(*ast.AssignStmt)
	if within, is := s.Body.List[0].(*ast.IfStmt); is {
		reply, ok = within.Init.(*ast.AssignStmt)
	}
	return ok && len(reply.Rhs) == 1 && strings.Contains(first, ".Reply(") &&
		strings.Replace(first, ".Reply(", ".Slow(", 1) == text(reply.Rhs[0])
}

func text(n ast.Node) string {
	var b bytes.Buffer
	printer.Fprint(&b, token.NewFileSet(), n)
	return b.String()
}

func count(n ast.Node, name string) (calls int) {
	ast.Inspect(n, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == name {
				calls++
			}
		}
		return true
	})
	return calls
}

func TestAnswerPair(t *testing.T) {
	for code, want := range map[string]bool{
		"if !r.Reply(h, n) { m = r.Slow(h, n) }":                                true,
		"if !r.Reply(h, n) { if n = r.Slow(h, n); n == 0 { continue } }":        true,
		"if !r.Reply(h, n) { if n = r.Slow(h, n); n == 0 { continue }; q.n++ }": true,
		"if !r.Reply(h, n) { q.n++; n = r.Slow(h, n) }":                         false,
		"if !r.Reply(h, n) { m = r.Slow(h, m) }":                                false,
		"if !r.Slow(h, n) { m = r.Reply(h, n) }":                                false,
		"if r.Reply(h, n) { m = r.Slow(h, n) }":                                 false,
		"if !r.Reply(h, n) { m = r.Slow(h, n) } else { m = n }":                 false,
		"if !r.Reply(h, n) { continue }":                                        false,
		"if !r.Reply(h, n) && n > 64 { m = r.Slow(h, n) }":                      false,
		"if !q.Reply(h, n) { m = r.Slow(h, n) }":                                false,
		"if !r.Reply(h, n) { for { if n = r.Slow(h, n); n == 0 { break } } }":   false,
	} {
		f := must.Get(parser.ParseFile(token.NewFileSet(), "", fmt.Sprintf("package p\nfunc f() { for { %s } }", code),
			0))(t)
		got := false
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.IfStmt); ok && isPair(s) {
				got = true
			}
			return true
		})
		if got != want {
			t.Errorf("%s: a pair: %v", code, got)
		}
	}
}
