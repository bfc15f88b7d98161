package lab

import (
	"strings"
	"testing"
)

// A guest whose driver reads registers by a write waits for the model.
func TestNoPosting(t *testing.T) {
	for _, wait := range []bool{false, true} {
		m := Machine{Sockets: []string{"a.sock"}, NoPosting: wait}
		if got := strings.Contains(strings.Join(m.functions(), " "), `"x-no-posted-writes":true`); got != wait {
			t.Errorf("NoPosting %v: %q", wait, m.functions())
		}
	}
}
