package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/proof/golden"
)

// What a program with two commands prints, and how it exits, for all kinds of arguments.
func TestRun(t *testing.T) {
	var b strings.Builder
	page := filepath.Join(t.TempDir(), "page")
	p := &Program{Name: "rebound-toy", Line: "plays", About: "plays with toys.", More: "More.", Codes: "0 done",
		Default:  "play",
		FlagsToo: true, Moved: map[string]string{"old": "rebound-new"}, SeeAlso: []string{"ls(1)"},
		Pages: map[string]func(*Env) error{"a": nil, "b": nil, "c": nil, "toml": func(e *Env) error {
			_, err := io.WriteString(e.Stdout, "the page\n")
			return err
		}},
		Commands: []Command{
			{Name: "play", Args: "[TOY ...]", Line: "play", Run: func(e *Env, args []string) error {
				fs := flag.NewFlagSet("play", flag.ContinueOnError)
				n, v := fs.Int("n", 1, "`number` of games"), fs.Bool("v", false, "say more")
				rest, err := e.ParseMixed(fs, args, "usage: rebound-toy play\n\nAll of it.\n", "usage: play\n")
				if err != nil {
					return err
				}
				e.Verbose(*v)
				e.Log.Info("playing")
				fmt.Fprintf(e.Stdout, "%d games with %q\n", *n, rest)
				return nil
			}},
			{Name: "stop", Line: "stop", Run: func(e *Env, args []string) error {
				fs := flag.NewFlagSet("stop", flag.ContinueOnError)
				if err := e.Parse(fs, args, "usage: rebound-toy stop\n\nStops.\n"); err != nil {
					return err
				}
				switch fs.Arg(0) {
				case "":
					return e.WritePage(page, func(w io.Writer) error { return nil })
				case "page":
					return e.WritePage("/proc/none/page", func(w io.Writer) error { return nil })
				case "usage":
					return process.Usagef("wrong %q", fs.Arg(1))
				}
				return errors.New("cannot\x1b stop")
			}},
		}}
	for _, args := range []string{"", "-h", "help", "--version", "version x", "play", "play a -n 2 b -- -c d",
		"-n 3", "-v", "10.0.0.2 -n 4",
		"play -h", "play -help-all", "play a --help-all", "play -m", "stop -m", "stop -h", "stop", "stop page",
		"stop usage x", "stop -- -now", "old",
		"sotp", "manual toml", "manual x", "manual toml x", "completion x", "completion a b", "completion",
		"completion zsh", "manual",
		"__complete rebound-toy p"} {
		var out, said strings.Builder
		code := p.Run(strings.Fields(args), &out, &said)
		fmt.Fprintf(&b, "$ rebound-toy %s: %d\n%s--\n%s\n", args, code, out.String(), said.String())
	}
	text := strings.ReplaceAll(b.String(), page, "PAGE")
	for _, varies := range []string{`--version: 0\n([^-].*\n)+`, `time=\S+`, `/\.rebound-[0-9a-f]+`} {
		text = regexp.MustCompile(varies).ReplaceAllString(text, "VARIES")
	}
	text = regexp.MustCompile(`(\.TH \S+ \S+) .*`).ReplaceAllString(text, "$1")
	golden.Equal(t, "testdata/run.txt", text)
}
