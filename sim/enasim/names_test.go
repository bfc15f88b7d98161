package enasim

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestTraceNames(t *testing.T) {
	x := newRig(t, Options{})
	x.Port.StartTrace(1000)
	x.Open()
	x.Do(opGetFeature, fields{17: uint8(featMTU), 24: uint32(7)})
	x.Port.ForgetViolations()
	var text strings.Builder
	x.Port.Trace().WriteTo(&text)
	check.Contains(t, text.String(),
		"write      AQ_CAPS (BAR 0 00018h) = 00400008h", "command    GET_FEATURE MTU, status ", " body[1]=7", "\nDEV_CTL = 0h\n")
	if n, _ := x.m.RegisterName(2, llqStride+8); n != "LLQ[1]+00008h" {
		t.Errorf("LLQ memory is called %q", n)
	}
	if n, _ := x.m.RegisterName(0, uint64(regRxDB)+8); n != "RX doorbell[2]" {
		t.Errorf("a doorbell is called %q", n)
	}
}
