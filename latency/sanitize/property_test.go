package sanitize_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

func TestCounts(t *testing.T) {
	for want, got := range map[string]string{
		"0 windows": sanitize.Count(0, "window"), "1 window": sanitize.Count(1, "window"),
		"3,000 windows": sanitize.Count(int64(3000), "window"), "2 replies": sanitize.Count(2, "reply"),
		"2 delays": sanitize.Count(2, "delay"), "1 reply": sanitize.Count(1, "reply"),
		"the only point": sanitize.All(1, "point"), "both replies": sanitize.All(2, "reply"),
		"all 3 replies": sanitize.All(3, "reply"), "all 1,200 points": sanitize.All(1200, "point"),
	} {
		check.Equal(t, got, want, "%q")
	}
}

// A Writer prints the same text, however it is cut into writes, and never a byte of control.
func TestWriterByParts(t *testing.T) {
	rnd := random.New(t)
	const some = "a\n\t \x1b\x9b\u202e\u00e9\u65e5\U0001f600\xff\xe6\x97"
	for range 300 {
		var text []byte
		for range rnd.IntN(20) {
			from := rnd.IntN(len(some))
			text = append(text, some[from:from+rnd.IntN(len(some)-from+1)]...)
		}
		text = append(text, 'z') // after it no rune is begun
		var whole, parts bytes.Buffer
		w := sanitize.NewWriter(&whole)
		must.Equal(t, must.Get(w.Write(text))(t), len(text), "%d bytes written")
		cut := sanitize.NewWriter(&parts)
		for rest := text; len(rest) > 0; {
			n := 1 + rnd.IntN(min(len(rest), 4))
			must.Equal(t, must.Get(cut.Write(rest[:n]))(t), n, "%d bytes written")
			rest = rest[n:]
		}
		must.Equal(t, parts.String(), whole.String(), "in parts %q")
		if strings.ContainsAny(whole.String(), "\x1b\u202e\x9b") {
			t.Fatalf("%q", whole.String())
		}
	}
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errors.New("full " + string(b))
	}
	return len(b), nil
}

// The first error is kept.
func TestWriterError(t *testing.T) {
	w := sanitize.NewWriter(&full{left: 1})
	must.Get(w.Write([]byte("a")))(t)
	check.OK(t, w.Err())
	check.Fails(t, "a full disk", check.Err(w.Write([]byte("b"))), nil, "full b")
	check.Fails(t, "a full disk", check.Err(w.Write([]byte("c"))), nil, "full c")
	check.Fails(t, "later", w.Err(), nil, "full b")
	check.Equal(t, w.File() == nil, true, "no file: %t")
	check.Equal(t, sanitize.NewWriter(os.Stderr).File(), os.Stderr, "%v")
	check.Equal(t, sanitize.NewWriter(io.Discard).File() == nil, true, "no file: %t")
}

// A long error is truncated, and a further line of it is indented.
func TestErrorText(t *testing.T) {
	check.Equal(t, sanitize.Error(errors.New("a\nb\x1b")), "a\n    b\\u001b", "%q")
	exact := strings.Repeat("x", 8<<10)
	check.Equal(t, sanitize.Error(errors.New(exact)), exact, "%q")
	check.Equal(t, sanitize.Error(errors.New(exact+"yz")), exact+"... (2 bytes more)", "%q")
}
