package house_test

import (
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// field is the name that a field has in reports before schema 3, which are still read.
var field = regexp.MustCompile(`"mend"|\bMend\b`)

// Comments, string literals and test names in Go code, and all other text files, use plain words.
func TestCodeUsesPlainWords(t *testing.T) {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Skipf("git ls-files: %v", err)
	}
	texts := regexp.MustCompile(
		`\.(toml|service|conf|sh|yaml|yml|lua|c|h|s|html|js|css|1|8)$|(^|/)(Makefile|Dockerfile)$|^(scripts|\.ci|packaging)/`)
	files := 0
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		if strings.Contains(file, "testdata/") || strings.HasPrefix(file, "results/") ||
			file == "proof/house/docs_test.go" || file == "proof/house/words_test.go" {
			continue
		}
		isGo := strings.HasSuffix(file, ".go")
		if !isGo && !texts.MatchString(file) {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil || bytes.IndexByte(b, 0) >= 0 {
			continue // deleted, a link to a folder, or not text
		}
		text := string(b)
		if isGo {
			text = prose(b)
		}
		files++
		for _, w := range dialect(field.ReplaceAllString(text, "")) {
			t.Errorf("%s: %q: use the plain word (CONTRIBUTING.md)", file, w)
		}
	}
	if files < 500 {
		t.Errorf("only %d files were read", files)
	}
}

// prose returns what a person reads in Go code: comments, strings, and the names of tests in words.
func prose(src []byte) string {
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile("", fset.Base(), len(src)), src, nil, scanner.ScanComments)
	var b strings.Builder
	last := token.ILLEGAL
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return b.String()
		case tok == token.COMMENT || tok == token.STRING:
			for line := range strings.Lines(lit) { // so that an expression of two words is found across lines
				b.WriteString(strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "/")) + " ")
			}
			b.WriteString("\n")
		case last == token.FUNC && tok == token.IDENT && strings.HasPrefix(lit, "Test"):
			for _, r := range lit {
				if unicode.IsUpper(r) {
					b.WriteByte(' ')
				}
				b.WriteRune(r)
			}
			b.WriteString("\n")
		}
		last = tok
	}
}
