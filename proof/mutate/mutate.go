package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// A mutation replaces one piece of a file.
type mutation struct {
	pkg, file  string
	line       int
	start, end int // offsets
	with       string
	what       string
	number     int  // in the programs that have all mutations
	switched   bool // it is there behind its number; the others are compiled by themselves
	probed     bool // it is there whether it is reached
}

func (m mutation) String() string {
	return fmt.Sprintf("%s:%d: %s", filepath.Base(m.file), m.line, m.what)
}

// apply returns the mutated file.
func (m mutation) apply(source []byte) []byte {
	return slices.Concat(source[:m.start], []byte(m.with), source[m.end:])
}

// operators maps each binary operator to its replacement.
var operators = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL,
}

// mutations are all mutations that this program can make in a file. Some do not compile.
func mutations(pkg, file string, source []byte) ([]mutation, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []mutation
	at := func(p token.Pos) int { return files.Position(p).Offset }
	add := func(from, to token.Pos, with, what string) {
		p := files.Position(from)
		all = append(all, mutation{pkg: pkg, file: file, line: p.Line, start: p.Offset, end: at(to), with: with,
			what: what})
	}
	text := func(n ast.Node) string {
		s, _, more := bytes.Cut(source[at(n.Pos()):at(n.End())], []byte("\n"))
		if more {
			s = append(slices.Clone(s), " ..."...)
		}
		return string(s)
	}
	// the line with the change, because a number alone may be there often
	within := func(n ast.Node, with string) string {
		from := bytes.LastIndexByte(source[:at(n.Pos())], '\n') + 1
		rest, _, _ := bytes.Cut(source[at(n.End()):], []byte("\n"))
		was := source[from : at(n.End())+len(rest)]
		is := slices.Concat(source[from:at(n.Pos())], []byte(with), rest)
		return fmt.Sprintf("%s becomes %s", bytes.TrimSpace(was), bytes.TrimSpace(is))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if with, ok := operators[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), with.String(),
					fmt.Sprintf("%s: %s becomes %s", text(n), n.Op, with))
			}
		case *ast.IncDecStmt:
			with := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
			add(n.TokPos, n.TokPos+2, with, text(n)+" becomes "+with)
		case *ast.BasicLit:
			if v, err := strconv.ParseUint(n.Value, 0, 63); n.Kind == token.INT && err == nil {
				with := fmt.Sprint(v + 1)
				add(n.Pos(), n.End(), with, within(n, with))
			}
		case *ast.Ident:
			if with := map[string]string{"true": "false", "false": "true"}[n.Name]; with != "" {
				add(n.Pos(), n.End(), with, within(n, with))
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+string(source[at(n.Cond.Pos()):at(n.Cond.End())])+")",
				"if "+text(n.Cond)+" is negated")
		case *ast.ExprStmt:
			add(n.Pos(), n.End(), "{}", text(n)+" is removed")
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				add(n.Pos(), n.End(), "{}", text(n)+" is removed")
			}
		case *ast.ImportSpec:
			return false
		}
		return true
	})
	return all, nil
}

// pick shuffles the mutations of all files. The order depends only on the seed and on the source.
func pick(files map[string]string, seed uint64) ([]mutation, error) {
	var all []mutation
	for file, pkg := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := mutations(pkg, file, source)
		if err != nil {
			return nil, err
		}
		all = append(all, m...)
	}
	slices.SortFunc(all, func(a, b mutation) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.start, b.start), cmp.Compare(a.with, b.with))
	})
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}
