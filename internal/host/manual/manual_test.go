package manual

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func example() *Program {
	var mode string
	var on bool
	table := setting.New(
		setting.OneOf("a.mode", &mode, "one", []setting.Choice{{Name: "one", Doc: "the first"},
			{Name: "two", Doc: ".the second"}}, "A mode:"),
		setting.Bool("a.on", &on, true, "A switch.\n\n'Second' paragraph, with a \\ in it."),
		setting.String("b.path", &mode, "", nil, "A path: `cat -v` it."))
	run := flag.NewFlagSet("run", flag.ContinueOnError)
	run.String("config", "", "a `FILE` of settings")
	run.Func("set", "a `KEY=VALUE`", func(string) error { return nil })
	run.Bool("force", false, "do it")
	run.Int("count", 7, "how often")
	table.Find("a.mode").AddFlag(run)
	return &Program{Name: "prog", Section: 8, Line: "an example", Doc: "First.\n\n  kept   as it is\n\n.Not a request.",
		Settings: table,
		Commands: []Command{{Name: "run", Args: "[-config FILE]", Doc: "does it", Flags: run},
			{Name: "report", Args: "DIR", Doc: "tells it", Folders: true}},
		Exit: "0 done.", SeeAlso: []string{"other(1)"}}
}

// mandoc accepts the pages, and they contain every flag, key, default and choice.
func TestPages(t *testing.T) {
	p := example()
	var man, config strings.Builder
	must.OK(t, p.WriteMan(&man, "v1.0", "2026-01-02"))
	must.OK(t, WriteConfig(&config, p.Settings, "prog-config", "settings of an example", "All of them.", "v1.0",
		"2026-01-02", "prog(8)"))
	one := *p
	one.Name, one.Exit, one.SeeAlso = "prog-one", "", nil
	one.Commands = []Command{{Args: "FILE", Flags: p.Commands[0].Flags}}
	var alone strings.Builder
	must.OK(t, one.WriteMan(&alone, "v1.0", ""))
	golden.Equal(t, "testdata/pages.txt", man.String()+alone.String()+config.String())
	needs.Programs(t, "mandoc")
	for _, c := range []struct {
		name, page string
		want       []string
	}{
		{"prog.8", man.String(), []string{"PROG(8)", "prog - an example", "prog run [-config FILE]", "kept   as it is",
			".Not a request.", "-count int", "how often (default 7)",
			"-force", "-mode value", "other(1)", "0 done."}},
		{"prog-config.5", config.String(), []string{"PROG-CONFIG(5)", "[a]", `mode (a string, default "one")`, "two", ".the second", "'Second' paragraph, with a \\ in it.", "A path: cat -v it.", "prog(8)"}},
	} {
		file := filepath.Join(t.TempDir(), c.name)
		must.OK(t, os.WriteFile(file, []byte(c.page), 0o644))
		lint, _ := exec.Command("mandoc", "-T", "lint", "-W", "warning", file).CombinedOutput()
		if len(lint) > 0 {
			t.Errorf("mandoc: %s\n%s", lint, c.page)
		}
		text := must.Get(exec.Command("mandoc", "-T", "ascii", "-O", "width=200", file).Output())(t)
		plain := text[:0] // bold and underlined are a letter, a backspace and a letter
		for i := range text {
			if text[i] == '\b' {
				plain = plain[:len(plain)-1]
			} else {
				plain = append(plain, text[i])
			}
		}
		for _, w := range c.want {
			if !strings.Contains(string(plain), w) {
				t.Errorf("no %q in\n%s", w, plain)
			}
		}
	}
}

// TestMain lets the test binary act as the program that a completion script calls.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == CompleteCommand {
		example().Complete(os.Stdout, os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// completions maps command lines to the expected candidates for their last word.
var completions = map[string]string{
	"prog ":                           "report run",
	"prog r":                          "report run",
	"prog ru":                         "run",
	"prog run -":                      "-config -count -force -h -mode -set",
	"prog run --fo":                   "--force",
	"prog run -fo":                    "-force",
	"prog run -force -co":             "-config -count",
	"prog run -config x":              "x.toml",
	"prog run -set ":                  "a.mode= a.on= b.path=",
	"prog run -set a.":                "a.mode= a.on=",
	"prog run -set a.mode=":           "a.mode=one a.mode=two",
	"prog run -set a.mode=t":          "a.mode=two",
	"prog run -set a.on=":             "a.on=false a.on=true",
	"prog run -set b.path=":           "",
	"prog run -mode ":                 "one two",
	"prog run -count ":                "",
	"prog report o":                   "out/",
	"prog report x":                   "",
	"prog run -set a.on=true -set b.": "b.path=",
}

// Each shell offers the same words. bash treats the part of a word up to = as a separate word.
func TestCompletionInShells(t *testing.T) {
	needs.Long(t)
	for shell, ask := range map[string]string{
		"bash": `set -u; source ./script; COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; _rebound_prog; printf '%s\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"}`,
		"fish": `source ./script; complete -C $argv[1] | string replace -r '\t.*' ''`,
		"zsh": `compdef() { }; compadd() { while [[ $1 == -* && $1 != -- ]]; do shift $(( ${#1} == 2 && 1 ? 2 : 1 )); done; [[ $1 == -- ]] && shift; print -rl -- "$@" }
_describe() { local w; for w in "${(@P)argv[-1]}"; do w=${w//\\\\:/@colon@}; print -r -- "${${w%%:*}//@colon@/:}"; done }
_files() { if [[ $1 == -/ ]]; then print -rl -- ${words[CURRENT]}*(N/M); else print -rl -- ${words[CURRENT]}*(N.M); fi }
source ./script; line=$1; words=(${=line}); [[ $line == *' ' ]] && words+=(""); CURRENT=$#words; _rebound_prog`,
	} {
		t.Run(shell, func(t *testing.T) {
			needs.Programs(t, shell)
			dir := t.TempDir()
			var script strings.Builder
			must.OK(t, example().WriteCompletion(&script, shell))
			self := must.Get(os.Executable())(t)
			for name, content := range map[string]string{"script": script.String(), "x.toml": "", "out/x": "",
				"bin/prog": "#!/bin/sh\nexec " + self + ` "$@"` + "\n"} {
				os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
				must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
			}
			for line, want := range completions {
				args := []string{"-c", ask, shell, line}
				if shell == "fish" {
					args = []string{"-c", ask, line}
				}
				cmd := exec.Command(shell, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "HOME="+dir)
				out, _ := cmd.CombinedOutput() // its status reports whether there was a candidate
				got := strings.Fields(string(out))
				slices.Sort(got)
				want := strings.Fields(want)
				for i, w := range want {
					if shell == "bash" {
						w = strings.TrimSuffix(w[strings.Index(strings.TrimSuffix(w, "="), "=")+1:], "/")
					}
					want[i] = w
				}
				if !slices.Equal(slices.Compact(got), want) {
					t.Errorf("%q: %q, want %q", line, got, want)
				}
			}
		})
	}
	if err := example().WriteCompletion(&strings.Builder{}, "tcsh"); err == nil ||
		!strings.Contains(err.Error(), "bash, zsh, fish") {
		t.Errorf("tcsh: %v", err)
	}
}

func TestUsage(t *testing.T) {
	var b strings.Builder
	must.OK(t, example().Usage(&b))
	const want = "usage:\n  prog run [-config FILE]                       does it\n  prog report DIR                               tells it\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
