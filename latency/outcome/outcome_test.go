package outcome

import (
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name                    string
		wrong                   Reason
		known, answered, inTime bool
		kind                    Kind
		why                     Reason
	}{
		{"in time", None, true, false, true, Answered, None},
		{"late", None, true, false, false, Late, None},
		{"again", None, true, true, true, Duplicate, None},
		{"again, after the timeout", None, true, true, false, Duplicate, None},
		{"to a forgotten probe", None, false, false, true, Stray, None},
		{"wrong source", Source, true, false, true, Rejected, Source},
		{"wrong source, again", Source, true, true, true, Rejected, Source},
		{"wrong payload", Payload, true, false, false, Rejected, Payload},
		{"a number that was not sent", Payload, false, false, false, Rejected, Sequence},
		{"an address and a number that are wrong", Source, false, false, false, Rejected, Source},
	} {
		if kind, why := Of(c.wrong, c.known, c.answered, c.inTime); kind != c.kind || why != c.why {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, kind, why, c.kind, c.why)
		}
	}
}

// Each reason has a distinct name.
func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reasons {
		if name := r.String(); name == "" || seen[name] || strings.ContainsAny(name, ",;") {
			t.Errorf("reason %d is named %q", r, name)
		} else {
			seen[name] = true
		}
	}
}
