package bench

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// hostile is a text that forges a line, sets a terminal's title, changes the writing direction and closes a tag or
// attribute.
const hostile = "x\nFORGED p99 1 ns\fFORGED\v\r\x1b]0;title\a\x1b[2J\u009b31m\u202egnp\u2028'\"`></title></script><script>alert(1)</script>"

// fill sets every text below v, except for the names of series, which have a fixed alphabet.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem(), text)
		}
	case reflect.Slice:
		if v.Len() == 0 && v.Type().Elem().Kind() != reflect.Uint8 && v.CanSet() {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i), text)
		}
	case reflect.Map:
		if v.CanSet() {
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf(text), reflect.New(v.Type().Elem()).Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Series" && f.Name != "Runs" && f.Tag.Get("json") != "-" {
				fill(v.Field(i), text)
			}
		}
	}
}

// The answers of a Prometheus server, whose labels name the paths, can neither command the terminal nor forge a line, nor add an element
// to a page.
func TestHostilePrometheus(t *testing.T) {
	answer := func(w http.ResponseWriter, status, text string) {
		moment := float64(time.Now().Unix())
		json.NewEncoder(w).Encode(map[string]any{"status": status, "errorType": text, "error": text, "warnings": []string{text}, "data": map[string]any{
			"resultType": "matrix", "result": []any{map[string]any{"metric": map[string]string{"target": text, "instance": text, "proto": text, "job": text},
				"values": [][2]any{{moment - 1800, "10"}, {moment - 60, "20"}}}}}})
	}
	for _, status := range []string{"success", "error"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "label") {
				json.NewEncoder(w).Encode(map[string]any{"status": status, "error": hostile, "data": []string{hostile}})
				return
			}
			answer(w, status, hostile)
		}))
		defer s.Close()
		out := filepath.Join(t.TempDir(), "matrix.html")
		for _, args := range [][]string{{"matrix", "-prom", s.URL, "-out", out}, {"compare", "prom:" + s.URL + "?target=a&from=now-1h&to=now", "prom:" + s.URL + "?target=b&from=now-1h&to=now"}} {
			code, stdout, stderr := inProcess(args...)
			harmlessText(t, args, stdout+stderr)
			t.Logf("%s of %s: exit %d\n%s%s", args[0], status, code, stdout, stderr)
		}
		if b, err := os.ReadFile(out); err == nil && (strings.Contains(string(b), "<script>alert") || strings.ContainsAny(string(b), "\x1b\a\u202e\u009b")) {
			t.Errorf("%s has what the server says as it is", out)
		}
	}
}

// harmlessText fails if a command's output has a control character or a forged line.
func harmlessText(t *testing.T, args []string, out string) {
	t.Helper()
	if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }); i >= 0 {
		t.Errorf("%q prints %q", args, out[max(i-60, 0):min(i+20, len(out))])
	}
	if i := strings.Index("\n"+out, "\nFORGED"); i >= 0 {
		t.Errorf("%q prints a forged line: %q", args, out[max(i-60, 0):min(i+20, len(out))])
	}
}

// A report from elsewhere can neither command the terminal nor forge a line, whichever command shows it, nor add an element
// to a page.
func TestHostileReport(t *testing.T) {
	parent := t.TempDir()
	write := func(name, text string) string {
		rep := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.2, Seconds: 3, Rate: 200, Runs: 3}.Report()
		rep.STAMP, rep.Tail = &report.STAMP{}, &report.Tail{Probes: 1}
		fill(reflect.ValueOf(rep).Elem(), text)
		rep.Metric = report.RoundTrip
		dir := filepath.Join(parent, name)
		must.OK(t, report.Write(dir, rep, page.Report))
		return dir
	}
	bad, good := write("x\nFORGED\x1b[2J\u202e", hostile), write("good", "harmless")
	badPage, goodPage, historyPage := filepath.Join(parent, "bad.html"), filepath.Join(parent, "good.html"), filepath.Join(parent, "history.html")
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"report", bad}, 0},
		{[]string{"report", "-json", bad}, 0},
		{[]string{"report", "-responder", bad, good}, 2},
		{[]string{"report", bad + "/none"}, 1},
		{[]string{"report", "-x" + hostile, bad}, 2},
		{[]string{hostile}, 2},
		{[]string{"compare", "-html", badPage, bad, bad}, 0},
		{[]string{"compare", "-html", badPage, good, bad}, 0},
		{[]string{"compare", "-html", goodPage, good, good}, 0},
		{[]string{"compare", "-fail-if", "p99>+1%", good, bad}, 1},
		{[]string{"compare", "prom:http://" + hostile, bad}, 2},
		{[]string{"report", "-anonymous", bad}, 0},
		{[]string{"report", good}, 0},
		{[]string{"history", "-out", historyPage, bad, good}, 0},
	} {
		code, stdout, stderr := inProcess(c.args...)
		out := stdout + stderr
		if code != c.code {
			t.Errorf("%q: exit %d, want %d\n%s", c.args, code, c.code, stderr)
		}
		harmlessText(t, c.args, out)
	}
	tags := func(path string) (count int, text string) {
		b := must.Get(os.ReadFile(path))(t)
		text = string(b)
		if strings.ContainsAny(text, "\x1b\a\u202e\u2028\u009b") || strings.Contains(text, "<script>alert") {
			t.Errorf("%s has what the report says as it is", path)
		}
		return strings.Count(text, "<script") + strings.Count(text, "</script") + strings.Count(text, "</title") + strings.Count(text, "<li"), text
	}
	for _, p := range [][2]string{{filepath.Join(bad, report.HTMLFile), filepath.Join(good, report.HTMLFile)}} {
		hostilePage, _ := tags(p[0])
		harmless, _ := tags(p[1])
		if hostilePage != harmless {
			t.Errorf("%s has %d tags, one of harmless texts %d", p[0], hostilePage, harmless)
		}
	}
	tags(badPage)
	tags(historyPage)
}
