package sanitize_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/proof/must"
)

var texts = []struct{ in, text, written string }{
	{"", "", ""},
	{"p99 31 µs (±3 µs), 中文, e\u0301, 1\u00a0ms", "p99 31 µs (±3 µs), 中文, e\u0301, 1\u00a0ms", "p99 31 µs (±3 µs), 中文, e\u0301, 1\u00a0ms"},
	{"a\nb\tc\r", `a\nb\tc\u000d`, "a\nb\tc" + `\u000d`},
	{"\x1b]0;title\a\x1b[2J", `\u001b]0;title\u0007\u001b[2J`, `\u001b]0;title\u0007\u001b[2J`},
	{"\u009b31m\x7f\x00", `\u009b31m\u007f\u0000`, `\u009b31m\u007f\u0000`},                              // C1 controls
	{"\x9b31m\xff", `\x9b31m\xff`, `\x9b31m\xff`},                                                        // the same in Latin-1
	{"\u202egnp.exe\u2066", `\u202egnp.exe\u2066`, `\u202egnp.exe\u2066`},                                // changes of direction
	{"\u2028\u200b\ufeff\U000e0041", `\u2028\u200b\ufeff\udb40\udc41`, `\u2028\u200b\ufeff\udb40\udc41`}, // invisible
}

func TestText(t *testing.T) {
	for _, c := range texts {
		if got := sanitize.Text(c.in); got != c.text {
			t.Errorf("Text(%q) = %s, want %s", c.in, got, c.text)
		}
		if got := sanitize.Text(c.text); got != c.text {
			t.Errorf("Text(%q) = %s: escaped twice", c.text, got)
		}
	}
}

func TestWriter(t *testing.T) {
	for _, c := range texts {
		for cut := range len(c.in) + 1 {
			var b bytes.Buffer
			w := sanitize.NewWriter(&b)
			for _, part := range []string{c.in[:cut], c.in[cut:]} {
				if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
					t.Errorf("Write(%q) = %d, %v", part, n, err)
				}
			}
			if b.String() != c.written {
				t.Errorf("%q cut at %d: %s, want %s", c.in, cut, &b, c.written)
			}
		}
	}
}

func TestWriterKeepsJSON(t *testing.T) {
	for _, c := range texts {
		if !utf8.ValidString(c.in) {
			continue // encoding/json replaces invalid UTF-8
		}
		var b bytes.Buffer
		e := json.NewEncoder(sanitize.NewWriter(&b))
		e.SetEscapeHTML(false)
		must.OK(t, e.Encode(c.in))
		var got string
		if err := json.Unmarshal(b.Bytes(), &got); err != nil || got != c.in {
			t.Errorf("%s: %q, %v", strings.TrimSpace(b.String()), got, err)
		}
	}
}
