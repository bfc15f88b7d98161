// Package plain makes text from files and from the network safe to print: a terminal obeys control characters, and a newline
// or a change of the writing direction can make a text look like another program's output.
package plain

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns s on one line, with everything that is not visible text or a space written as an escape sequence: \n, \t,
// \u001b, \u202e, and \x9b for a byte that is not UTF-8. The escapes of runes are those of JSON.
func Text(s string) string {
	if strings.IndexFunc(s, special) < 0 && utf8.ValidString(s) {
		return s
	}
	return string(escape(nil, []byte(s), ""))
}

// special reports whether r has to be escaped. Graphic runes are letters, marks, numbers, punctuation, symbols and spaces;
// line separators, control and formatting characters are not.
func special(r rune) bool { return !unicode.IsGraphic(r) }

// escape appends text to out. The characters in keep stay as they are.
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

// Count writes a number of things: "1 window", "3 windows".
func Count[T int | int64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Writer writes text to a terminal, or to a file that one will show, escaped as Text does except for newlines and
// tabs. It is the last line of defence: a text that must stay on its line has to go through Text. Several goroutines
// may use it.
type Writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // the beginning of a rune whose other bytes have not come yet
	err  error  // the first of the underlying writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// File returns the file that w writes to, nil if it is none: for what shows progress on a terminal.
func (w *Writer) File() *os.File {
	f, _ := w.to.(*os.File)
	return f
}

// longest is how much of an error is printed: the file that it quotes may have a line of megabytes.
const longest = 8 << 10

// Error returns the text of err, escaped as a Writer does and cut off if it is very long, with its lines after the first indented: one that
// comes from a file name cannot pass for another message.
func Error(err error) string {
	text := err.Error()
	more := ""
	if len(text) > longest {
		more = fmt.Sprintf("... (%d bytes more)", len(text)-longest)
		text = text[:longest]
	}
	return strings.ReplaceAll(string(escape(nil, []byte(text), "\n\t")), "\n", "\n    ") + more
}

// Write returns len(b), or what the underlying writer reports.
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

// Err returns the first error of the underlying writer: a result was not printed, or not all of it.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
