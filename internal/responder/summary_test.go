package responder

import (
	"fmt"
	"io"
	"testing"
)

type writes []string

func (w *writes) Write(b []byte) (int, error) {
	*w = append(*w, string(b))
	return len(b), nil
}

// A reader of the output sees whole lines only.
func TestTableIsWrittenAtOnce(t *testing.T) {
	var w writes
	err := printTable(&w, func(w io.Writer) error {
		for i, name := range []string{"<b>", "line", "line"} {
			fmt.Fprintf(w, "%s\t%d\n", name, i)
		}
		return nil
	})
	if err != nil || len(w) != 1 || w[0] != "<b>   0\nline  1\nline  2\n" {
		t.Errorf("%q written, %v", w, err)
	}
}
