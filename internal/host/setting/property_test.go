package setting

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/random"
)

// text has everything that needs quotes in one of the notations of a setting.
func text(rnd *rand.Rand) string {
	const letters = "ab 7,=#[]{}'\"\\$\t\u00e9\u65e5\u007f-."
	var b strings.Builder
	for range rnd.IntN(9) {
		all := []rune(letters)
		b.WriteRune(all[rnd.IntN(len(all))])
	}
	return b.String()
}

// tomlOf writes a value of a setting.
func tomlOf(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case []string:
		var all []string
		for _, s := range v {
			all = append(all, quote(s))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case []int:
		return strings.ReplaceAll(fmt.Sprint(v), " ", ", ")
	case time.Duration:
		return quote(v.String())
	}
	return fmt.Sprint(v)
}

// parts are the values of a flag that is repeated for each element of a list.
func parts(v any) (all []string) {
	switch v := v.(type) {
	case []string:
		for _, s := range v {
			all = append(all, "["+quote(s)+"]")
		}
	case []int:
		for _, n := range v {
			all = append(all, fmt.Sprint(n))
		}
	}
	if all == nil {
		return []string{tomlOf(v)}
	}
	return all
}

// Any values arrive the same from a file, from KEY=VALUE and from flags, in any order.
func TestAnyValuesRoundTrip(t *testing.T) {
	rnd := random.New(t)
	for range 200 {
		want := chosen{name: text(rnd), size: rnd.IntN(1 << (1 + rnd.IntN(62))), on: rnd.IntN(2) == 0,
			mode: []string{"x", "yy"}[rnd.IntN(2)], ports: []int{}, names: []string{},
			every: time.Second + time.Duration(rnd.Int64N(int64(time.Hour)))}
		for range rnd.IntN(4) {
			want.ports, want.names = append(want.ports, rnd.IntN(70000)), append(want.names, text(rnd))
		}
		rows := map[string]any{"a.name": want.name, "a.size_max": want.size, "a.on": want.on, "b.mode": want.mode,
			"b.ports": want.ports, "b.names": want.names, "b.every": want.every}
		var doc string
		var byFile, bySet, byFlag chosen
		set, flags := table(&bySet), table(&byFlag)
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		flags.AddFlags(fs)
		for key, v := range rows { // in random order
			doc += key + " = " + tomlOf(v) + "\n"
			check.OK(t, set.Set(key+"="+tomlOf(v)))
			for _, part := range parts(v) {
				check.OK(t, fs.Parse([]string{"-" + flags.Find(key).flag() + "=" + part}))
			}
		}
		flags.Assign()
		file := table(&byFile)
		check.OK(t, file.Parse("F", doc))
		for how, tab := range map[string]*Table{"file": file, "KEY=VALUE": set, "flags": flags} {
			check.OK(t, tab.Apply())
			got := map[string]chosen{"file": byFile, "KEY=VALUE": bySet, "flags": byFlag}[how]
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("by %s: %#v, want %#v, from\n%s", how, got, want, doc)
			}
		}
	}
}

// A document with a value of another type, or a key that no setting has, is refused by its line, wherever it is.
func TestAnyMistakeIsRefused(t *testing.T) {
	rnd := random.New(t)
	good := []string{"a.name = 'n'", "a.size_max = 3", "a.on = true", "b.mode = 'x'", "b.ports = [1, 2]",
		"b.names = ['a']", "# a comment", "", "b.every = '3s'"}
	bad := []string{"a.nam = 'n'", "a.size_max = '3'", "a.on = 1", "b.mode = 'z'", "b.ports = 1", "b.names = [1]",
		"b.every = '5ms'", "c.d = 1", "e = 1", "a.size_max = 3.5", "b.ports = [1, -2]", "a.name = 1979-05-27"}
	for _, mistake := range bad {
		key, _, _ := strings.Cut(mistake, " ")
		var lines []string
		for _, i := range rnd.Perm(len(good)) {
			if !strings.HasPrefix(good[i], key) {
				lines = append(lines, good[i])
			}
		}
		at := rnd.IntN(len(lines) + 1)
		doc := strings.Join(append(append(append([]string{}, lines[:at]...), mistake), lines[at:]...), "\n")
		check.OK(t, parse(strings.Join(lines, "\n")))
		check.Fails(t, doc, parse(doc), nil, fmt.Sprintf("F:%d: ", at+1))
	}
}
