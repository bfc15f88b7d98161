// Package rows tests the settings of a program's table.
package rows

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/random"
)

// candidates are values in TOML's notation. Each setting accepts one that is not its default.
func candidates(s *setting.Setting, file string) (all []string) {
	kind := s.Kind.String()
	if !strings.HasSuffix(kind, "integers") {
		for _, text := range append(s.Values(), "eth9", "10.0.0.9/24", "10.0.0.9", "10.0.0.9:9000", "7s", "15ms", "2m",
			"0", "3", "900", "3M", "poisson", "02:00:00:00:00:09", "debug", "http://10.0.0.9/x", "stop", "none",
			"time+location", strings.Repeat("5a", 32), file) {
			all = append(all, strconv.Quote(text))
		}
	}
	if strings.Contains(kind, "integer") {
		all = append(all, "1", "2", "3", "64", "900", "4096", "20000")
	}
	if kind == "true or false" {
		return []string{"true", "false"}
	}
	if strings.HasPrefix(kind, "a list") {
		for i, one := range all {
			all[i] = "[" + one + "]"
		}
	}
	return all
}

// probes are texts near the limits of settings, and of wrong kinds.
var probes = []string{
	"", "-1", "0", "1", "2", "3", "7", "10", "31", "32", "63", "64", "65", "100", "127", "128", "255",
	"256", "512", "1000", "1023", "1024", "4094", "4095", "4096", "8192", "9000", "9216", "16384",
	"32768", "65535", "65536", "1000000", "2147483647", "2147483648", "9223372036854775807", "true",
	"x", "x y", "auto", "none", "off", "any", "1ns", "1us", "1ms", "1s", "1m", "1h", "24h", "-1s",
	"0s", "10.0.0.1", "10.0.0.1/24", "10.0.0.1/33", "10.0.0.1:80", "10.0.0.1:0", ":80", "::1",
	"fd00::1/64", "[::1]:80", "02:00:00:00:00:01", "01:00:00:00:00:01", "02:00:00:00:00", "0x1f",
	"50%", "1e3", "1.5", "http://h/x", "/x", "stop", "[1, 2]", "[2, 1]", "[1, 1]", "[0]",
	"[\"a\", \"b\"]", "1-2", "1k", "1M",
}

// limits compares with the text in a file which values each setting accepts, and what it says of the others.
func limits(t *testing.T, table func() (*setting.Table, func() string), path string) {
	usual, text := table()
	var b strings.Builder
	byDefault := text()
	for i := range usual.Settings {
		row := &usual.Settings[i]
		fmt.Fprintf(&b, "%s (%v)", row.Key, row.Kind)
		said := ""
		tab, text := table()
		for _, v := range probes {
			err := tab.Set(row.Key + "=" + v)
			changed := err == nil
			if changed {
				err = tab.Apply()
			}
			is := "accepted"
			switch {
			case err != nil:
				is = strings.TrimPrefix(err.Error(), "-set: "+row.Key+": ")
				is = strings.ReplaceAll(is, strconv.Quote(v), "it")
				is = strings.Replace(is, v+" is not", "it is not", 1)
			case text() == byDefault:
				is = "the default"
			}
			if is != said {
				fmt.Fprintf(&b, "\n\t%s:", is)
			}
			said = is
			fmt.Fprintf(&b, " %q", v)
			if changed {
				tab, text = table()
			}
		}
		b.WriteString("\n")
	}
	golden.Equal(t, path, b.String())
}

// RoundTrip tests that each setting has the same effect from a file, from -set and as a flag, alone and beside any
// others, whatever their order, and that each has an effect. table returns a new table, and a function that prints what
// its settings are stored in. path is the file that limits compares with.
func RoundTrip(t *testing.T, table func() (*setting.Table, func() string), path string) {
	limits(t, table, path)
	rnd := random.New(t)
	file := filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(file, []byte(strings.Repeat("5a", 32)+"\n"), 0o600))
	usual, text := table()
	byDefault := text()
	values := map[string][]string{}
	for i := range usual.Settings {
		row := &usual.Settings[i]
		for _, v := range candidates(row, file) {
			tab, text := table()
			if tab.Set(row.Key+"="+v) == nil && tab.Apply() == nil && text() != byDefault {
				values[row.Key] = append(values[row.Key], v)
			}
		}
		if len(values[row.Key]) == 0 {
			t.Errorf("%s: no value changes anything", row.Key)
		}
	}
	rounds := needs.Cases(50, 5)
	for range rounds {
		bySet, ofSet := table()
		byFile, ofFile := table()
		byFlag, ofFlag := table()
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		byFlag.AddFlags(fs)
		doc := ""
		for key, all := range values { // in random order
			if rnd.IntN(2) == 0 {
				v := all[rnd.IntN(len(all))]
				must.OK(t, bySet.Set(key+"="+v))
				must.OK(t, fs.Parse([]string{"-" + names(byFlag)[key] + "=" + v}))
				doc += key + " = " + v + "\n"
			}
		}
		byFlag.Assign()
		must.OK(t, byFile.Parse("F", doc))
		for _, tab := range []*setting.Table{bySet, byFile, byFlag} {
			must.OK(t, tab.Apply())
		}
		from := "from\n" + strings.ReplaceAll(doc, "%", "%%")
		check.Equal(t, ofFile(), ofSet(), from+"by file: %s")
		check.Equal(t, ofFlag(), ofSet(), from+"by flags: %s")
	}
}

// names are the flags by key.
func names(tab *setting.Table) map[string]string {
	all := map[string]string{}
	for _, name := range tab.Flags() {
		all[tab.ByFlag(name).Key] = name
	}
	return all
}
