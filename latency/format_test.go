package latency

import "testing"

func TestFormatNS(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 7: "7 ns", 12.34: "12.34 ns", 999: "999 ns", 1000: "1.000 µs", 3412: "3.412 µs", 34_120: "34.12 µs",
		341_200: "341.2 µs", 5e6: "5.000 ms", 61e9: "61.00 s", -3412: "-3.412 µs", 2.5: "2.5 ns"} {
		if got := FormatNS(ns); got != want {
			t.Errorf("%v: %q, want %q", ns, got, want)
		}
	}
}
