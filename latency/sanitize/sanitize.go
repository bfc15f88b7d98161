// Package sanitize makes text from files and from the network safe to print: a terminal interprets control characters,
// and a newline or a change of writing direction can make a text look like another program's output.
package sanitize

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rebound-nic/rebound/latency"
)

// Text returns s on one line, with everything other than visible text and spaces written as an escape sequence: \n, \t,
// \u001b, \u202e, and \x9b for a byte that is not UTF-8. The escapes of runes are those of JSON.
func Text(s string) string {
	if strings.IndexFunc(s, special) < 0 && utf8.ValidString(s) {
		return s
	}
	return string(escape(nil, []byte(s), ""))
}

// special reports whether r has to be escaped. Graphic runes are letters, marks, numbers, punctuation, symbols and
// spaces; line separators, control and formatting characters are not.
func special(r rune) bool { return !unicode.IsGraphic(r) }

// escape appends text to out. The characters in keep are not escaped.
func escape(out, text []byte, keep string) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, text[0])
		case !special(r) || strings.ContainsRune(keep, r):
			out = append(out, text[:n]...)
		case r == '\n':
			out = append(out, `\n`...)
		case r == '\t':
			out = append(out, `\t`...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out
}

// Count formats a number with its noun: "1 window", "3,000 windows", "2 replies".
func Count[T int | int64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "y"); ok && !strings.HasSuffix(stem, "a") { // replies, not delaies
		return latency.FormatCount(n) + " " + stem + "ies"
	}
	return latency.FormatCount(n) + " " + thing + "s"
}

// All names all n of something: "the only point", "both points", "all 12 points".
func All[T int | int64](n T, thing string) string {
	switch n {
	case 1:
		return "the only " + thing
	case 2:
		return "both " + strings.TrimPrefix(Count(n, thing), "2 ")
	}
	return "all " + Count(n, thing)
}

// Writer writes text to a terminal, or to a file that may be shown on one, escaped as in Text except for newlines and
// tabs. It is the last line of defence: text that must stay on one line has to go through Text. It is safe for
// concurrent use.
type Writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // the start of a rune whose other bytes have not been written yet
	err  error  // first error of the underlying writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// File returns the file that w writes to, nil if it is not a file. Progress displays on a terminal use it.
func (w *Writer) File() *os.File {
	f, _ := w.to.(*os.File)
	return f
}

// longest is the greatest printed length of an error, because a quoted file may have a line of megabytes.
const longest = 8 << 10

// Error returns the text of err, escaped as by a Writer and truncated if it is very long, with its lines after the
// first indented, so that a line from a file name cannot pass for another message.
func Error(err error) string {
	text := err.Error()
	more := ""
	if len(text) > longest {
		more = fmt.Sprintf("... (%d bytes more)", len(text)-longest)
		text = text[:longest]
	}
	return strings.ReplaceAll(string(escape(nil, []byte(text), "\n\t")), "\n", "\n    ") + more
}

// Write returns len(b), or the result of the underlying writer.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.rest, b...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if at := len(text) - i; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	w.rest = append([]byte(nil), text[whole:]...)
	if _, err := w.to.Write(escape(nil, text[:whole], "\n\t")); err != nil {
		if w.err == nil {
			w.err = err
		}
		return 0, err
	}
	return len(b), nil
}

// Err returns the first error of the underlying writer, in which case the output is incomplete.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
