// Package random makes numbers for tests of properties: others in each run, and the same again with REBOUND_SEED.
package random

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// New returns a generator. A test that fails says which REBOUND_SEED repeats it.
func New(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if s, ok := os.LookupEnv("REBOUND_SEED"); ok {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("REBOUND_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("REBOUND_SEED=%d repeats this", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// Nanoseconds returns times as they are measured, and some that no measurement has: each order of magnitude up to 2^45
// as often as another, 0, below 0, and many equal ones.
func Nanoseconds(r *rand.Rand, n int) []int64 {
	values := make([]int64, n)
	for i := range values {
		switch r.IntN(20) {
		case 0:
			values[i] = 0
		case 1:
			values[i] = -r.Int64N(1 << 20)
		case 2:
			values[i] = 4096
		default:
			values[i] = r.Int64N(1 << (1 + r.IntN(45)))
		}
	}
	return values
}
