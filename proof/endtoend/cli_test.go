package endtoend

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/bench"
	"github.com/rebound-nic/rebound/proof/must"
)

// inProcess runs a bench in the test's process.
func inProcess(args ...string) result {
	var out, err bytes.Buffer
	code := run(args, &out, &err)
	return result{args: args, code: code, out: out.String(), errors: err.String()}
}

// content returns what a file has.
func content(t *testing.T, file string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(file))(t))
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func TestHelpFitsOneScreen(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"help"}, {"run", "-h"}, {"watch", "-h"}, {"compare", "--help"},
		{"report", "-h"}, {"history", "-h"}, {"matrix", "-h"}, {"suspects", "-h"},
		{"demo", "-help"}} {
		r := inProcess(args...)
		if n := strings.Count(r.out, "\n"); r.code != 0 || n < 5 || n > 40 || !strings.Contains(r.out, "rebound-") ||
			r.errors != "" {
			t.Errorf("bench %s: exit status %d, %d lines; want at most 40; on stderr %q", strings.Join(args, " "),
				r.code, n, r.errors)
		}
	}
	inProcess("run", "-help-all").prints(t, "-stamp-zero-ssid", "-duration")
}

func TestShortHelpNamesFlagsThatExist(t *testing.T) {
	for _, command := range []string{"run", "watch"} {
		short, all := inProcess(command, "-h").out, inProcess(command, "-help-all").out
		if short == all || strings.Count(short, "\n  -") < 8 {
			t.Errorf("%s -h lists %d flags", command, strings.Count(short, "\n  -"))
		}
		for line := range strings.Lines(short) {
			if flag, ok := strings.CutPrefix(line, "  -"); ok {
				if name := strings.Fields(flag)[0]; !regexp.MustCompile(`\n  -` + regexp.QuoteMeta(name) +
					`\s`).MatchString(all) {
					t.Errorf("-%s is not a flag of %s", name, command)
				}
			}
		}
	}
}

// Commands that became another program's name that program.
func TestMovedCommands(t *testing.T) {
	for args, want := range map[string]string{"watch 10.0.0.1": "use rebound-watch TARGET ...",
		"matrix -prom x": "use rebound-watch matrix",
		"suspects":       "use rebound-watch suspects", "config": "use rebound-watch config",
		"compare prom:http://a b": "use rebound-watch compare"} {
		var out, said bytes.Buffer
		if code := bench.Run(strings.Fields(args), &out, &said); code != 2 || out.Len() > 0 ||
			!strings.Contains(said.String(), want) {
			t.Errorf("rebound-bench %s: exit %d, %q, want %q", args, code, said.String(), want)
		}
	}
}

func TestVersionFlags(t *testing.T) {
	for _, arg := range []string{"version", "-version", "--version"} {
		inProcess(arg).prints(t, "rebound-bench ")
	}
}
