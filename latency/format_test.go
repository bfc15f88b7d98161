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

func TestFormatShare(t *testing.T) {
	for share, want := range map[float64]string{0: "0 %", 1: "100 %", 0.996: "100 %", 0.994: "99 %", 0.5: "50 %", 0.0734: "7.3 %", 1.237: "124 %", 12: "1200 %",
		0.1: "10 %", 0.000_012_34: "0.0012 %", 1e-9: "0.0000001 %", -0.25: "-25 %"} {
		if got := FormatShare(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}
