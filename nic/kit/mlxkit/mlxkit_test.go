package mlxkit

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func TestDataSegment(t *testing.T) {
	s := NewData(0x01020304, 0x11121314, 0x2122232425262728)
	got := *(*[16]byte)(unsafe.Pointer(&s))
	if want := [16]byte{1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28}; got != want {
		t.Errorf("segment % x, want % x", got, want)
	}
	a, b := s.Words()
	if words := [2]uint64{a, b}; *(*[16]byte)(unsafe.Pointer(&words)) != got {
		t.Errorf("words %#x, segment % x", words, got)
	}
}

func TestSteps(t *testing.T) {
	failed := errors.New("refused")
	for _, dead := range []bool{false, true} {
		var s Steps
		var undone []string
		for _, name := range []string{"first", "second", "third"} {
			s.Done(name, func() error {
				undone = append(undone, name)
				if name == "second" {
					return failed
				}
				return nil
			})
		}
		want := []string{"third", "second", "first"}
		if dead {
			want = want[:2]
		}
		if err := s.Undo(func() bool { return dead }); !errors.Is(err, failed) || !strings.HasPrefix(err.Error(), "second: ") || !slices.Equal(undone, want) {
			t.Errorf("dead %v: undone %q, want %q; %v", dead, undone, want, err)
		}
		if err := s.Undo(func() bool { return dead }); err != nil || len(undone) != len(want) {
			t.Errorf("dead %v: the second Undo did something: %q, %v", dead, undone, err)
		}
	}
}
