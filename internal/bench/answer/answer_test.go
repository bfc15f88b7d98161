package answer

import (
	"testing"
	"time"
)

func TestResolutionChanges(t *testing.T) {
	fine := Moment{At: time.Unix(0, 0), Count: 2, Buckets: []Bucket{{1e-6, 1.1e-6, 1}, {1.1e-6, 1.2e-6, 1}}}
	coarse := Moment{At: time.Unix(60, 0), Count: 3, Buckets: []Bucket{{1e-6, 1.2e-6, 3}}}
	_, _, coarser := difference(&fine, &coarse)
	_, _, reset := difference(&coarse, &fine)
	if coarser != errCoarser || reset != errReset {
		t.Errorf("%v, %v", coarser, reset)
	}
}
