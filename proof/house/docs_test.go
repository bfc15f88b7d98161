package house_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// readmeWords and readmeLines bound README.md: it is the first page, and everything longer belongs in docs.
// ARCHITECTURE.md is a map.
const (
	readmeWords  = 1320
	readmeLines  = 157
	mapOfFolders = 120 // lines
)

func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("docs/*/*.md")
	if err != nil || len(docs) < 20 {
		t.Fatalf("docs/*/*.md: %d pages, %v", len(docs), err)
	}
	return append([]string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"}, docs...)
}

func read(t *testing.T, file string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(file))(t))
}

func TestReadmeIsShort(t *testing.T) {
	text := read(t, "README.md")
	if n := len(strings.Fields(text)); n > readmeWords {
		t.Errorf("README.md has %d words, at most %d are allowed", n, readmeWords)
	}
	if n := strings.Count(text, "\n"); n > readmeLines {
		t.Errorf("README.md has %d lines, at most %d are allowed", n, readmeLines)
	}
	if n := strings.Count(read(t, "ARCHITECTURE.md"), "\n"); n > mapOfFolders {
		t.Errorf("ARCHITECTURE.md has %d lines, at most %d are allowed", n, mapOfFolders)
	}
}

// The address of a release in README and install.md is the module's.
func TestReleaseAddress(t *testing.T) {
	module := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	for _, page := range []string{"README.md", "docs/use/install.md"} {
		text := read(t, page)
		check.Contains(t, text, "\nR="+module[1]+"\n", "https://$R/releases/latest/download/")
		if strings.Count(text, module[1]) > 1 {
			t.Errorf("%s has the address more than once", page)
		}
	}
}

func TestEveryPageIsLinked(t *testing.T) {
	linked := map[string]bool{}
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			if to := filepath.Join(filepath.Dir(p), file); to != p {
				linked[to] = true
			}
		}
	}
	for _, p := range pages(t)[1:] {
		if !linked[p] {
			t.Errorf("no page links to %s", p)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"`)

func TestLinksResolve(t *testing.T) {
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			path := filepath.Join(filepath.Dir(p), file)
			if file == "" {
				path = p
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: link to %s: %v", p, target, err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, path)), anchor) {
				t.Errorf("%s: link to %s: no such heading", p, target)
			}
		}
	}
}

func anchors(page string) (ids []string) {
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			id := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			ids = append(ids, strings.ReplaceAll(id, " ", "-"))
		}
	}
	return ids
}

// phrases are those of the dialect that CONTRIBUTING.md replaces.
var phrases = []string{"mend", "mends", "mended", "held against", "by turns", "anew", "for good", "for ever", "whoever",
	"nobody says", "is told", "are told", "was told", "thereof", "thereby", "wherein", "lest", "whence", "stranger",
	"strangers", "of its own", "the far end", "the near end", "as long as", "is had", "has had", "shall"}

var phrase = regexp.MustCompile(`(?i)\b(` + strings.Join(phrases, "|") + `)\b`)

// dialect returns the phrases that text has, in its order.
func dialect(text string) (found []string) {
	for line := range strings.Lines(text) {
		lower := strings.ToLower(line)
		if slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(lower, p) }) { // much quicker
			found = append(found, phrase.FindAllString(line, -1)...)
		}
	}
	return found
}

func TestPagesUsePlainWords(t *testing.T) {
	for _, p := range pages(t) {
		for _, w := range dialect(read(t, p)) {
			t.Errorf("%s: %q: use the plain word (see the glossary and CONTRIBUTING.md)", p, w)
		}
	}
}

var (
	flagWord = regexp.MustCompile(`(?:^|\s)-([a-z][a-z0-9-]*)`)
	program  = regexp.MustCompile(`(^|[\s;&` + "`" + `])(rebound-|bin/)\b`)
	quoted   = regexp.MustCompile(`'[^']*'|"[^"]*"`)
)

func TestCommandLinesInDocsExist(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir+"/", "./cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help := map[string]string{} // by program and command
	helpOf := func(args ...string) string {
		key := strings.Join(args, " ")
		if _, ok := help[key]; !ok {
			ask := "-h"
			words := slices.Clone(args[1:])
			switch key {
			case "bench run":
				ask = "-help-all"
			case "watch":
				words, ask = []string{"probe"}, "-help-all"
			}
			out, _ := exec.Command(filepath.Join(dir, args[0]), append(words, ask)...).CombinedOutput()
			help[key] = string(out)
		}
		return help[key]
	}
	lines := 0
	for _, p := range pages(t) {
		text := strings.ReplaceAll(read(t, p), "\\\n", " ")
		for line := range strings.Lines(text) {
			at := program.FindStringIndex(line)
			if at == nil {
				continue
			}
			command, _, _ := strings.Cut(line[at[1]:], "#")
			command, _, _ = strings.Cut(command, "`")
			command = quoted.ReplaceAllString(command, "x")
			command, _, _ = strings.Cut(command, "&")
			command, _, _ = strings.Cut(command, ";")
			words := strings.Fields(command)
			if len(words) == 0 || !slices.Contains([]string{"bench", "responder", "simnic", "prove", "watch"},
				words[0]) {
				continue
			}
			lines++
			args := words[:1]
			for _, w := range words[1:] {
				if !regexp.MustCompile(`^[a-z]+$`).MatchString(w) || len(args) == 3 {
					break
				}
				args = words[:len(args)+1]
			}
			if words[0] != "prove" && len(args) == 3 {
				args = args[:2]
			}
			text := helpOf(args...)
			if strings.Contains(text, "unknown command") {
				t.Errorf("%s: %q: unknown command", p, strings.TrimSpace(command))
				continue
			}
			for _, m := range flagWord.FindAllStringSubmatch(" "+strings.Join(words[1:], " "), -1) {
				if name := m[1]; name != "h" && !regexp.MustCompile(`(?m)(^|[\s\[,(])--?`+regexp.QuoteMeta(name)+
					`\b`).MatchString(text) {
					t.Errorf("%s: %q: -%s is not in the help of %s", p, strings.TrimSpace(command), name,
						strings.Join(args, " "))
				}
			}
		}
	}
	if lines < 40 {
		t.Errorf("only %d command lines were found", lines)
	}
}
