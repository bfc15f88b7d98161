package ena_test

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim/enasim"
)

// TestProfiles covers the differences between instances according to public logs. The driver opens and answers on each,
// at the expected transmit cost.
func TestProfiles(t *testing.T) {
	pushed, host := nictest.Cost(t, harness(enasim.Options{}), 98, 64, 1),
		nictest.Cost(t, harness(enasim.Options{NoLLQ: true}), 98, 64, 1)
	const moderation, hash, input, attributes = 1 << 20, 1 << 10, 1 << 18, 1 << 28
	for _, c := range []struct {
		o     enasim.Options
		llq   bool
		where string
	}{
		{enasim.Options{MSIXBAR: 1}, true, "Graviton: BAR 0 of 8 KB, MSI-X in BAR 1"},
		{enasim.Options{MSIXBAR: 4}, true, "x86: MSI-X in BAR 4 of 64 KB"},
		{enasim.Options{NeedMeta: true}, true, "newer generations: a meta descriptor before every frame"},
		{enasim.Options{NoRxChecks: true}, true, "no receive checksum, no hash"},
		{enasim.Options{NoLLQ: true, NoRxChecks: true, MSIXBAR: 1}, false, "t4g.nano: LLQ refused"},
		{enasim.Options{NoLLQ: true, BasicQueues: true, NoMetrics: true, NoRxChecks: true,
			Unsupported: moderation | hash | input | attributes}, false, "the earliest"},
	} {
		t.Run(c.where, func(t *testing.T) {
			want := host
			if c.llq {
				want = pushed
			}
			got := nictest.Cost(t, harness(c.o), 98, 64, 1)
			said := fmt.Sprintf("64 replies cost %+v, want %+v", got, want)
			for _, n := range [][2]*uint64{{&got.DMAWrite, &want.DMAWrite}, {&got.MMIOWrite, &want.MMIOWrite}} {
				if *n[0] == *n[1]+1 || *n[0]+1 == *n[1] { // a keep-alive arrived or was acknowledged in one of them
					*n[0] = *n[1]
				}
			}
			if got != want {
				t.Error(said)
			}
		})
	}
}
