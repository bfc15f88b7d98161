package check_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// failures records what a test is failed with.
type failures struct {
	testing.TB
	text string
}

func (f *failures) Helper()                      {}
func (f *failures) Error(args ...any)            { f.text += fmt.Sprint(args...) }
func (f *failures) Errorf(s string, args ...any) { f.text += fmt.Sprintf(s, args...) }
func (f *failures) FailNow()                     { f.text += "; fatal" }
func (f *failures) Fatal(args ...any)            { f.text += "fatal: " + fmt.Sprint(args...) }

type closer struct{ error }

func (c closer) Close() error { return c.error }

func TestChecksFailOnlyForWhatIsWrong(t *testing.T) {
	wrong := errors.New("wrong")
	for want, do := range map[string]func(testing.TB){
		"":                       func(t testing.TB) { check.Equal(t, 3, 3, "%d") },
		"register 0x3, want 0x4": func(t testing.TB) { check.Equal(t, 3, 4, "register %#x") },
		"[1 2], want [2 1]": func(t testing.TB) {
			check.Same(t, []int{1, 2}, []int{1, 2}, "%v")
			check.Same(t, []int{1, 2}, []int{2, 1}, "%v")
		},
		"\"d\" is not in:\nabc": func(t testing.TB) { check.Contains(t, "abc", "a", "d", "bc") },
		"wrong": func(t testing.TB) {
			check.OK(t, nil)
			check.OK(t, wrong)
		},
		"fatal: wrong": func(t testing.TB) {
			must.OK(t, nil)
			must.OK(t, wrong)
		},
		"3, want 4; fatal": func(t testing.TB) {
			must.Equal(t, 3, 3, "%d")
			must.Equal(t, 3, 4, "%d")
		},
		"fatal: wrong5": func(t testing.TB) { t.Error(must.Get(5, wrong)(t)) },
		`it: <nil>, want an error with []`: func(t testing.TB) {
			check.Fails(t, "it", wrong, nil)
			check.Fails(t, "it", nil, nil)
		},
		`it: wrong, want "EOF" with []`: func(t testing.TB) {
			check.Fails(t, "it", wrong, wrong)
			check.Fails(t, "it", wrong, io.EOF)
		},
		`it: wrong, want "wrong" with ["w" "x"]`: func(t testing.TB) {
			check.Fails(t, "it", check.Err(5, wrong), wrong, "w", "g")
			check.Fails(t, "it", wrong, wrong, "w", "x")
		},
		"Close: wrong": func(t testing.TB) {
			must.Close(t, closer{nil})
			must.Close(t, closer{wrong})
		},
	} {
		f := &failures{TB: t}
		if do(f); f.text != want {
			t.Errorf("%q, want %q", f.text, want)
		}
	}
}
