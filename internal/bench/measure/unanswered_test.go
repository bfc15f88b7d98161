package measure

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/check"
)

// A reflector's counters of 32 bits may wrap between its first and its latest answer.
func TestUnanswered(t *testing.T) {
	for _, c := range []struct {
		kind                                                       probe.TLV
		answered                                                   int64
		firstReceived, firstSent, lastReceived, lastSent, received uint32
		counted                                                    bool
	}{
		{probe.DirectMeasurement, 2, 10, 8, 110, 101, 7, true},
		{probe.DirectMeasurement, 2, 1<<32 - 5, 1<<32 - 9, 20, 6, 10, true},
		{probe.DirectMeasurement, 2, 10, 8, 20, 19, 0, true}, // an answer overtook a request
		{probe.DirectMeasurement, 1, 10, 8, 110, 101, 0, false},
		{probe.DirectMeasurement + 1, 2, 10, 8, 110, 101, 0, false},
	} {
		a := engine.TLVAnswers{}
		a.Type, a.Answered = c.kind, c.answered
		a.First, a.Latest = make([]byte, 12), make([]byte, 12)
		for i, v := range []uint32{c.firstReceived, c.firstSent} {
			binary.BigEndian.PutUint32(a.First[4+4*i:], v)
		}
		for i, v := range []uint32{c.lastReceived, c.lastSent} {
			binary.BigEndian.PutUint32(a.Latest[4+4*i:], v)
		}
		n, counted := unanswered(&a)
		check.Equal(t, n, int64(c.received), "%d unanswered")
		check.Equal(t, counted, c.counted, "counted: %v")
	}
}
