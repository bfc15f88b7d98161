package nic

import (
	"errors"
	"testing"
)

func TestCheckFrame(t *testing.T) {
	tagged := func(n int, tags ...uint16) []byte {
		f := make([]byte, n)
		for i, tag := range append(tags, 0x0800) {
			if at := 12 + 4*i; at+2 <= n {
				f[at], f[at+1] = byte(tag>>8), byte(tag)
			}
		}
		return f
	}
	for _, c := range []struct {
		name  string
		frame []byte
		ok    bool
	}{
		{"empty", nil, false},
		{"short header", tagged(13), false},
		{"header", tagged(14), true},
		{"full", tagged(1514), true},
		{"one too long", tagged(1515), false},
		{"tagged full", tagged(1518, 0x8100), true},
		{"tagged too long", tagged(1519, 0x8100), false},
		{"twice tagged full", tagged(1522, 0x88A8, 0x8100), true},
		{"twice tagged too long", tagged(1523, 0x88A8, 0x8100), false},
		{"three tags", tagged(1526, 0x88A8, 0x8100, 0x8100), false},
		{"a header that ends with a tag's type", tagged(14, 0x8100), true},
	} {
		if err := CheckFrame(c.frame, 1500); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrFrameSize) {
			t.Errorf("%s, %d bytes: %v", c.name, len(c.frame), err)
		}
	}
}
