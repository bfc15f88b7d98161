package endtoend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
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
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Series" && f.Name != "Runs" &&
				f.Tag.Get("json") != "-" {
				fill(v.Field(i), text)
			}
		}
	}
}

// The answers of a Prometheus server, whose labels name the paths, can neither command the terminal nor forge a line,
// nor add an element to a page.
func TestHostilePrometheus(t *testing.T) {
	now := float64(time.Now().Unix())
	for _, status := range []string{"success", "error"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "label") {
				json.NewEncoder(w).Encode(map[string]any{"status": status, "error": hostile, "data": []string{hostile}})
				return
			}
			labels := map[string]string{"target": hostile, "instance": hostile, "proto": hostile, "job": hostile}
			answer(w, status, hostile, "matrix", []any{map[string]any{"metric": labels,
				"values": [][2]any{{now - 1800, "10"}, {now - 60, "20"}}}})
		}))
		defer s.Close()
		out := filepath.Join(t.TempDir(), "matrix.html")
		for _, args := range [][]string{{"matrix", "-prom", s.URL, "-out", out},
			{"compare", "prom:" + s.URL + "?target=a&from=now-1h&to=now",
				"prom:" + s.URL + "?target=b&from=now-1h&to=now"}} {
			harmlessText(t, inProcess(args...))
		}
		harmlessPage(t, out)
	}
}

// answer writes a response of a Prometheus server.
func answer(w http.ResponseWriter, status, text, kind string, result []any) {
	json.NewEncoder(w).Encode(map[string]any{"status": status, "errorType": text, "error": text,
		"warnings": []string{text},
		"data":     map[string]any{"resultType": kind, "result": result}})
}

// harmlessText fails if a command's output has a control character or a forged line.
func harmlessText(t *testing.T, r result) {
	t.Helper()
	args, out := r.args, r.out+r.errors
	if i := strings.IndexFunc(out, func(r rune) bool {
		return r != '\n' && r != '\t' &&
			!unicode.IsGraphic(r)
	}); i >= 0 {
		t.Errorf("%q prints %q", args, out[max(i-60, 0):min(i+20, len(out))])
	}
	if i := strings.Index("\n"+out, "\nFORGED"); i >= 0 {
		t.Errorf("%q prints a forged line: %q", args, out[max(i-60, 0):min(i+20, len(out))])
	}
}

// A report from elsewhere can neither command the terminal nor forge a line, whichever command shows it, nor add an
// element to a page.
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
	badPage, goodPage, historyPage := filepath.Join(parent, "bad.html"), filepath.Join(parent, "good.html"),
		filepath.Join(parent, "history.html")
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
		r := inProcess(c.args...)
		r.fails(t, c.code)
		harmlessText(t, r)
	}
	tags := func(dir string) int {
		path := filepath.Join(dir, report.HTMLFile)
		harmlessPage(t, path)
		text := content(t, path)
		return strings.Count(text, "<script") + strings.Count(text, "</script") + strings.Count(text,
			"</title") + strings.Count(text, "<li")
	}
	check.Equal(t, tags(bad), tags(good), "%d tags with hostile texts")
	harmlessPage(t, badPage)
	harmlessPage(t, historyPage)
}

// raw is hostile and not valid UTF-8, as a file or a kernel's name may be.
const raw = hostile + "\xff\x9b31m"

// word is hostile, but without characters that end a word, a column or a JSON string.
const word = "x\x1b]0;t\a\u009b31m\u202eg\xff\x9b"

// harmlessPage fails if a page has hostile text unescaped.
func harmlessPage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		return // the command refused its input
	}
	if i := strings.IndexAny(string(b), "\x1b\a\u202e\u2028\u009b"); i >= 0 {
		t.Errorf("%s has a control character: %q", path, b[i:min(i+20, len(b))])
	}
	check.Equal(t, strings.Contains(string(b), "<script>alert"), false, path+" has a foreign script: %v")
	check.Equal(t, utf8.Valid(b), true, path+" is UTF-8: %v")
}

// Whichever word of another tool's file is hostile, and whatever the file is called, no command prints it unescaped.
func TestHostileFiles(t *testing.T) {
	needs.Long(t)
	golden, err := filepath.Glob("../../internal/bench/foreign/testdata/*.*")
	if err != nil || len(golden) < 30 {
		t.Fatalf("%d files: %v", len(golden), err)
	}
	dir := filepath.Join(t.TempDir(), "d\nFORGED\x1b[2J\u202e\xff")
	must.OK(t, os.Mkdir(dir, 0o755))
	shown, refused := 0, 0
	texts := regexp.MustCompile(`"[^"\n]*[A-Za-z][^"\n]*"|[A-Za-z][^\s",{}]*`)
	for _, from := range golden {
		b := must.Get(os.ReadFile(from))(t)
		b = b[:min(len(b), 200<<10)]
		all := texts.FindAllIndex(b, -1)
		step := max(len(all)/4, 1)
		for i := 0; i < len(all); i += step {
			at := all[(i+i/step)%len(all)] // another column each time
			text := word
			if b[at[0]] == '"' {
				q, _ := json.Marshal(hostile)
				text = string(q)
			}
			path := filepath.Join(dir, "f\x1b]0;t\a"+filepath.Ext(from))
			must.OK(t, os.WriteFile(path, []byte(string(b[:at[0]])+text+string(b[at[1]:])), 0o644))
			html := filepath.Join(dir, "p.html")
			for _, args := range [][]string{{"report", "-unit", "us", "-html", html},
				{"compare", "-unit", "us", "-html", html, path}} {
				os.Remove(html)
				r := inProcess(append(args, path)...)
				harmlessText(t, r)
				harmlessPage(t, html)
				if r.code == 0 {
					shown++
				} else {
					refused++
				}
			}
		}
	}
	if shown < 50 || refused < 50 {
		t.Errorf("%d were shown and %d refused: the table does not reach both", shown, refused)
	}
}

// Hostile file names, configuration values and keys, and command-line arguments are escaped, and truncated if they are
// very long, in every message.
func TestHostileArguments(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	q, _ := json.Marshal(hostile)
	long := strings.Repeat("y", 1<<20-100)
	var refused [][]string
	for i, text := range []string{raw + " = 1", string(q) + " = 1", "[probe]\n" + string(q) + " = 1",
		"[" + string(q) + "]\nx = 1", "[probe]\nproto = " + string(q), "[probe]\nrate = " + string(q),
		"[targets]\nlist = [" + string(q) + "]", "[targets]\nfile = " + string(q),
		"[targets]\nfile_sd = [" + string(q) + "]", "[keep]\ndir = \"/proc/\u202e\\u001b\"", "x = \"" + raw,
		"[probe]\nproto = \"" + long + "\"", long + " = 1"} {
		refused = append(refused, []string{"watch", "-config", file(fmt.Sprintf("%d\x1b[2J.toml", i), text)})
	}
	j, _ := json.Marshal([]any{map[string]any{"targets": []string{hostile}}})
	k, _ := json.Marshal([]any{map[string]any{"targets": []string{"127.0.0.1"},
		"labels": map[string]string{hostile: "x"}}})
	l, _ := json.Marshal([]any{map[string]any{"targets": []string{"127.0.0.1"},
		"labels": map[string]string{"__param_proto": hostile, "__param_stamp_key": hostile}}})
	m, _ := json.Marshal([]any{map[string]any{hostile: 1}})
	refused = append(refused, [][]string{
		{"watch", "-target", raw}, {"watch", "-file", dir + "/" + raw}, {"watch", "-file", file("list", raw)}, {"watch", "-file", file("list2", "127.0.0.1 "+word)},
		{"watch", "-file", file("list3", "127.0.0.1 "+word+"=1")}, {"watch", "-file", file("list4", "127.0.0.1 a="+long)},
		{"watch", "-file-sd", file("a.json", string(j))}, {"watch", "-file-sd", file("b.yml", string(j))}, {"watch", "-file-sd", file("c.json", string(k))}, {"watch", "-file-sd", file("d.yml", string(k))},
		{"watch", "-file-sd", file("e.json", string(l))}, {"watch", "-file-sd", file("f.yml", string(m))}, {"watch", "-file-sd", file("g.json", string(m))}, {"watch", "-file-sd", file("h.json", raw)},
		{"watch", "-file-sd", file("i.yml", raw)}, {"watch", "-file-sd", file("j"+word, "")}, {"watch", "-dns", raw}, {"watch", "-" + raw}, {"watch", raw},
		{"run", raw}, {"run", "10.0.0.1", "-" + raw}, {"run", "10.0.0.1", "-ab", raw, "-ab", raw}, {"run", "10.0.0.1", "-proto", raw}, {"run", "10.0.0.1", "-stamp-key", file("key"+word, "x")},
		{"run", "10.0.0.1", "-iface", raw, "-driver", "afpacket"}, {"run", raw + ".example"},
		{"history", dir + "/" + raw}, {"history", "-stat", raw, dir}, {"history", "-out", dir + "/" + raw + "/x", dir},
		{"matrix", "-prom", raw}, {"matrix", "-prom", "http://127.0.0.1:1", "-label", raw}, {"matrix", "-prom", "http://127.0.0.1:1", "-at", raw}, {"matrix", raw}, {"suspects", "-prom", raw}, {"suspects", "-prom", "http://127.0.0.1:1", "-label", raw}, {"suspects", raw},
		{"demo", raw}, {"demo", "-driver", raw}, {"version", raw}, {"manual", raw}, {"completion", raw}, {"config", raw}, {"compare", "-fail-if", raw, "a", "b"},
	}...)
	for _, args := range refused {
		r := inProcess(args...)
		if r.code != 2 && r.code != 1 || len(r.errors) > 64<<10 {
			t.Errorf("%.60q: exit %d, a message of %d bytes: %.200s", args, r.code, len(r.errors), r.errors)
		}
		harmlessText(t, r)
	}
}

// The output of a variant's command is escaped.
func TestHostileHook(t *testing.T) {
	n := newNetwork(t)
	r := n.bench(quick("-ab", "target="+far4+",name=a,do=printf 'x\\nFORGED\\033[2J\\377'; exit 3", "-ab",
		"target="+far4+",name=b,do=true", "-duration", "100ms", "-out", filepath.Join(t.TempDir(), "r"))...)
	r.fails(t, 1, "hook failed")
	harmlessText(t, r)
}

// Labels in a list that are hostile, or not UTF-8, are escaped on the metrics page, in the log and in the folder's
// files; a page with them can be scraped.
func TestHostileLabels(t *testing.T) {
	n := newNetwork(t)
	dir := t.TempDir()
	list, sd, logs := filepath.Join(dir, "list"), filepath.Join(dir, "sd.json"), filepath.Join(dir, "logs")
	j, _ := json.Marshal([]any{map[string]any{"targets": []string{far6}, "labels": map[string]string{"site": hostile}}})
	must.OK(t, os.WriteFile(list, []byte(far4+" site="+word+"\n"), 0o644))
	must.OK(t, os.WriteFile(sd, j, 0o644))
	w := n.watch(9480, "-driver", "afpacket", "-file", list, "-file-sd", sd, "-rate", "50", "-dir", logs, "-interval",
		"1s")
	found := ""
	w.until("both targets answer", func(v map[string]float64) bool {
		trips := 0
		for name, n := range v {
			if strings.HasPrefix(name, "rebound_rtt_seconds_count{") && n > 0 {
				trips++
				found += name + "\n"
			}
		}
		return trips == 2
	})
	harmlessText(t, result{out: found})
	if !utf8.ValidString(found) || !strings.Contains(found, `x\\u001b]0;`) {
		t.Errorf("metrics:\n%s", found)
	}
	w.end()
	harmlessText(t, result{out: w.Log.String()})
	files, err := filepath.Glob(filepath.Join(logs, "*.hlog"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	for _, file := range files {
		harmlessText(t, result{args: []string{file}, out: content(t, file)})
	}
}

// The metrics page of a responder comes from another host: its texts are bounded, and counts are numbers.
func TestHostileResponder(t *testing.T) {
	many := new(strings.Builder)
	for i := range 300 {
		fmt.Fprintf(many, "rebound_refused_total{reason=\"r%d\"} 1\n", i)
	}
	for _, c := range []struct{ text, want string }{
		{"rebound_refused_total{reason=\"rate\"} NaN\n", "want a count"},
		{"rebound_refused_total{reason=\"rate\"} -1\n", "want a count"},
		{"rebound_refused_total{reason=\"rate\"} 1e300\n", "want a count"},
		{"rebound_refused_total{reason=\"rate\"} +Inf\n", "want a count"},
		{many.String(), "more than 200 values of reason"},
		{"rebound_refused_total{reason=\"" + strings.Repeat("x", 1000) + "\"} 1\n", "more than 100 bytes"},
		{raw, "responder's metrics"},
		{"rebound_refused_total{reason=\"a\x1b[2J\\nFORGED\"} 3\n", ""},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte("# TYPE rebound_refused_total counter\n" + c.text))
		}))
		got, _, err := observe.ReadResponder(s.URL)
		s.Close()
		if c.want == "" && (err != nil || len(got) != 1 || got[0].Frames != 3) || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.60q: %v, %v, want %q", c.text, got, err, c.want)
		}
	}
}
