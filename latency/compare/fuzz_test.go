package compare

import (
	"math"
	"strings"
	"testing"
)

func FuzzLimits(f *testing.F) {
	f.Add("p99>+5%+200ns, max > +1.5ms")
	f.Add("mean>+1e3ns")
	f.Add("p99>+٣%")
	f.Fuzz(func(t *testing.T, s string) {
		all, err := ParseLimits(s)
		if err != nil {
			if !strings.HasPrefix(err.Error(), errLimit.Error()) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, l := range all {
			if !(l.Relative > 0 || l.Absolute > 0) || math.IsInf(l.Absolute, 0) || math.IsInf(l.Relative, 0) {
				t.Errorf("%q: %+v", s, l)
			}
		}
	})
}
