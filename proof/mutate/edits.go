package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// edit is a mutation that a program switches on while it runs. It replaces a range of a file, whose parts may have
// edits themselves.
type edit struct {
	from, to int // offsets
	order    int // of edits with the same range: the lower one is outside
	parts    [][2]int
	build    func(parts []string) string
}

// switches are what edits need besides the source: a number is that of a mutation.
const switches = `
import (
	"os"
	"strconv"
	"syscall"
)

var mutationChosen, _ = strconv.Atoi(os.Getenv("` + choose + `"))
var mutationReached = mutationOpen()

func mutationOpen() []byte {
	f, err := os.OpenFile(os.Getenv("` + reaches + `"), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(i.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return b
}

func mutationOn(number int) bool {
	if mutationReached != nil {
		mutationReached[number] = 1
	}
	return number == mutationChosen
}

type mutationInt interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}
type mutationNumber interface{ mutationInt | ~float32 | ~float64 }
type mutationOrdered interface{ mutationNumber | ~string }

func mutationValue[T any](number int, a, b T) T { if mutationOn(number) { return b }; return a }
func mutationStep[T mutationNumber](number int) T { if mutationOn(number) { return T(0) - 1 }; return 1 }
func mutationAnd(number int, a bool, b func() bool) bool { if mutationOn(number) { return a || b() }; return a && b() }
func mutationOr(number int, a bool, b func() bool) bool { if mutationOn(number) { return a && b() }; return a || b() }
`

// binary are the operators on numbers: the function's name, the constraint of its operands, and what it returns.
var binary = map[token.Token][3]string{
	token.LSS: {"Less", "mutationOrdered", "bool"}, token.LEQ: {"AtMost", "mutationOrdered", "bool"},
	token.GTR: {"More", "mutationOrdered", "bool"}, token.GEQ: {"AtLeast", "mutationOrdered", "bool"},
	token.ADD: {"Sum", "mutationNumber", "T"}, token.SUB: {"Difference", "mutationNumber", "T"},
	token.MUL: {"Product", "mutationNumber", "T"}, token.QUO: {"Quotient", "mutationNumber", "T"},
	token.AND: {"Bits", "mutationInt", "T"}, token.OR: {"Union", "mutationInt", "T"},
	token.SHL: {"Left", "mutationInt", "T"}, token.SHR: {"Right", "mutationInt", "T"},
}

// switchFile is a file of the package with the functions of switches.
func switchFile(pkg string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n%s", pkg, switches)
	for op, f := range binary {
		other := "T"
		if op == token.SHL || op == token.SHR {
			other = "S"
		}
		fmt.Fprintf(&b, "func mutation%s[T %s, S mutationInt](number int, a T, b %s) %s {\n", f[0], f[1], other, f[2])
		fmt.Fprintf(&b, "if mutationOn(number) { return a %s b }; return a %s b }\n", operators[op], op)
	}
	return b.String()
}

// source is a package whose types are known.
type source struct {
	*packages.Package
	file    *ast.File
	text    []byte
	parents map[ast.Node]ast.Node
	imports map[string]string // names in this file, by path
}

// loadTypes returns packages with their types, by path.
func loadTypes(pkgs []string) (map[string]*packages.Package, error) {
	all, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedCompiledGoFiles |
		packages.NeedImports | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo |
		packages.NeedExportFile}, pkgs...)
	if err != nil {
		return nil, err
	}
	byPath := map[string]*packages.Package{}
	for _, p := range all {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("the types of %s: %v", p.PkgPath, p.Errors)
		}
		byPath[p.PkgPath] = p
	}
	return byPath, nil
}

// newSource prepares one of the package's files.
func newSource(p *packages.Package, file string, text []byte) (*source, error) {
	k := slices.Index(p.CompiledGoFiles, file)
	if k < 0 {
		return nil, fmt.Errorf("%s is not of %s", file, p.PkgPath)
	}
	s := &source{p, p.Syntax[k], text, map[ast.Node]ast.Node{}, map[string]string{}}
	var above []ast.Node
	ast.Inspect(s.file, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return false
		}
		if len(above) > 0 {
			s.parents[n] = above[len(above)-1]
		}
		above = append(above, n)
		return true
	})
	for _, i := range s.file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if s.imports[path] = p.Imports[path].Name; i.Name != nil {
			s.imports[path] = i.Name.Name
		}
	}
	return s, nil
}

func (s *source) at(p token.Pos) int { return s.Fset.Position(p).Offset }

func (s *source) span(n ast.Node) [2]int { return [2]int{s.at(n.Pos()), s.at(n.End())} }

// typeText is how the file names a type, "" if it cannot.
func (s *source) typeText(t types.Type) string {
	if b, ok := t.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
		t = types.Default(t)
	}
	named := true
	text := types.TypeString(t, func(p *types.Package) string {
		if p == s.Types {
			return ""
		}
		name, ok := s.imports[p.Path()]
		named = named && ok && name != "_" && name != "."
		return name
	})
	if t == types.Typ[types.UntypedNil] || !named {
		return ""
	}
	return text
}

func (s *source) constant(e ast.Expr) bool {
	v, ok := s.TypesInfo.Types[e]
	return ok && v.Value != nil
}

// whole returns the largest constant expression that e is a part of, or nil if it has to be constant.
func (s *source) whole(e ast.Expr) ast.Expr {
	for {
		p, ok := s.parents[e].(ast.Expr)
		if _, pair := p.(*ast.KeyValueExpr); !ok || pair || !s.constant(p) {
			break
		}
		e = p
	}
	for n := ast.Node(e); n != nil; n = s.parents[n] {
		switch x := n.(type) {
		case *ast.GenDecl:
			if x.Tok == token.CONST {
				return nil
			}
		case *ast.ArrayType:
			return nil
		case *ast.KeyValueExpr:
			if x.Key == e {
				return nil
			}
		}
	}
	return e
}

// edit returns the edit of a mutation with a number, nil if it has to be compiled by itself.
func (s *source) edit(m mutation, number int) *edit {
	var found ast.Node
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.BinaryExpr:
			if s.at(x.OpPos) == m.start && len(x.Op.String()) == m.end-m.start {
				found = n
			}
		case *ast.IncDecStmt:
			if s.at(x.TokPos) == m.start {
				found = n
			}
		case *ast.IfStmt:
			if s.span(x.Cond) == [2]int{m.start, m.end} && strings.HasPrefix(m.with, "!(") {
				found = n
			}
		case *ast.BasicLit, *ast.Ident:
			if s.span(n) == [2]int{m.start, m.end} && !strings.HasPrefix(m.with, "!(") && m.with != "{}" {
				found = n
			}
		case *ast.ExprStmt, *ast.AssignStmt:
			if s.span(n) == [2]int{m.start, m.end} && m.with == "{}" {
				found = n
			}
		}
		return true
	})
	build := func(r [2]int, order int, format string, args ...any) *edit {
		return &edit{r[0], r[1], order, [][2]int{r}, func(parts []string) string {
			return fmt.Sprintf(format, append(args, parts[0])...)
		}}
	}
	constant := func(e ast.Expr) *edit {
		w := s.whole(e)
		if w == nil {
			return nil
		}
		t := s.typeText(s.TypesInfo.Types[w].Type)
		if t == "" {
			return nil
		}
		r := s.span(w)
		with := string(s.text[r[0]:m.start]) + m.with + string(s.text[m.end:r[1]])
		return &edit{r[0], r[1], 5, [][2]int{r}, func(parts []string) string {
			return fmt.Sprintf("mutationValue[%s](%d, %s, %s)", t, number, parts[0], with)
		}}
	}
	switch x := found.(type) {
	case *ast.BasicLit:
		return constant(x)
	case *ast.Ident:
		if s.whole(x) == nil {
			return nil
		}
		return build(s.span(x), 5, "(mutationOn(%d) != %s)", number)
	case *ast.IfStmt:
		return build(s.span(x.Cond), 1, "mutationOn(%d) != (%s)", number)
	case *ast.ExprStmt, *ast.AssignStmt:
		switch s.parents[found].(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
			return build(s.span(found), 0, "if !mutationOn(%d) { %s }", number)
		}
	case *ast.IncDecStmt:
		t := s.typeText(s.TypesInfo.Types[x.X].Type)
		if t == "" {
			return nil
		}
		return &edit{m.start, m.end, 1, nil, func([]string) string {
			return fmt.Sprintf(" %s= mutationStep[%s](%d)", x.Tok.String()[:1], t, number)
		}}
	case *ast.BinaryExpr:
		return s.binary(x, number, constant)
	}
	return nil
}

// probe returns an edit that only says that the statement with a mutation is reached, nil if there is none around it.
func (s *source) probe(m mutation, number int) *edit {
	var at ast.Node
	ast.Inspect(s.file, func(n ast.Node) bool {
		if n == nil || s.at(n.Pos()) > m.start || s.at(n.End()) < m.end {
			return false
		}
		var among []ast.Stmt
		switch p := s.parents[n].(type) {
		case *ast.BlockStmt:
			among = p.List
		case *ast.CaseClause:
			among = p.Body
		case *ast.CommClause:
			among = p.Body
		}
		_, isCase := n.(*ast.CaseClause)
		_, isComm := n.(*ast.CommClause)
		if x, ok := n.(ast.Stmt); ok && !isCase && !isComm && slices.Contains(among, x) {
			at = n
		}
		return true
	})
	if at == nil {
		return nil
	}
	from := s.at(at.Pos())
	return &edit{from, from, 6, nil, func([]string) string { return fmt.Sprintf("mutationOn(%d); ", number) }}
}

// binary returns the edit of an operator.
func (s *source) binary(x *ast.BinaryExpr, number int, constant func(ast.Expr) *edit) *edit {
	if s.constant(x) {
		return constant(x)
	}
	r, parts := s.span(x), [][2]int{s.span(x.X), s.span(x.Y)}
	switch x.Op {
	case token.EQL, token.NEQ:
		return &edit{r[0], r[1], 4, [][2]int{r}, func(parts []string) string {
			return fmt.Sprintf("(mutationOn(%d) != (%s))", number, parts[0])
		}}
	case token.LAND, token.LOR:
		name := map[token.Token]string{token.LAND: "And", token.LOR: "Or"}[x.Op]
		return &edit{r[0], r[1], 4, parts, func(parts []string) string {
			return fmt.Sprintf("mutation%s(%d, %s, func() bool { return %s })", name, number, parts[0], parts[1])
		}}
	}
	of, shift := s.TypesInfo.Types[x.X], x.Op == token.SHL || x.Op == token.SHR
	if of.Value != nil && !shift {
		of = s.TypesInfo.Types[x.Y]
	}
	b, ok := of.Type.Underlying().(*types.Basic)
	t := s.typeText(of.Type)
	if !ok || t == "" || b.Info()&types.IsString != 0 && x.Op == token.ADD {
		return nil
	}
	return &edit{r[0], r[1], 4, parts, func(parts []string) string {
		second := "int"
		if shift {
			second = s.typeText(s.TypesInfo.Types[x.Y].Type)
		}
		return fmt.Sprintf("mutation%s[%s, %s](%d, %s, %s)", binary[x.Op][0], t, second, number, parts[0], parts[1])
	}}
}

// render returns a file with edits.
func render(text []byte, all []*edit) string {
	slices.SortStableFunc(all, func(a, b *edit) int {
		switch {
		case a.from != b.from:
			return a.from - b.from
		case a.to != b.to:
			return b.to - a.to
		}
		return a.order - b.order
	})
	var part func(from, to int, all []*edit) string
	part = func(from, to int, all []*edit) string {
		var b strings.Builder
		for len(all) > 0 {
			e, inside := all[0], 1
			for inside < len(all) && all[inside].from < e.to {
				inside++
			}
			var parts []string
			for _, p := range e.parts {
				var in []*edit
				for _, x := range all[1:inside] {
					if x.from >= p[0] && x.to <= p[1] {
						in = append(in, x)
					}
				}
				parts = append(parts, part(p[0], p[1], in))
			}
			b.Write(text[from:e.from])
			b.WriteString(e.build(parts))
			from, all = e.to, all[inside:]
		}
		b.Write(text[from:to])
		return b.String()
	}
	return part(0, len(text), all)
}

var (
	numberIn = regexp.MustCompile(`mutation[A-Z]\w*(?:\[[^(]*\])?\((\d+)[,)]`)
	wrongAt  = regexp.MustCompile(`(?m)^\S*?([^/\s]+\.go):(\d+)(?::\d+)?: `)
)

// rejected returns the numbers of edits at or just before the lines of a rendered file that the compiler complains of.
// texts are by the files' names without a folder.
func rejected(said string, texts map[string]string) (numbers []int) {
	for _, w := range wrongAt.FindAllStringSubmatch(said, -1) {
		lines := strings.Split(texts[w[1]], "\n")
		at, _ := strconv.Atoi(w[2])
		for back := 0; back < 6 && at-back > 0 && at-back <= len(lines); back++ {
			found := numberIn.FindAllStringSubmatch(lines[at-back-1], -1)
			for _, f := range found {
				n, _ := strconv.Atoi(f[1])
				numbers = append(numbers, n)
			}
			if len(found) > 0 {
				break
			}
		}
	}
	return numbers
}
