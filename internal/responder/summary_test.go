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
		for i := range 3 {
			fmt.Fprintf(w, "line\t%d\n", i)
		}
		return nil
	})
	if err != nil || len(w) != 1 || w[0] != "line  0\nline  1\nline  2\n" {
		t.Errorf("%q written, %v", w, err)
	}
}
