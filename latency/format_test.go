package latency

import (
	"math"
	"testing"
)

func TestFormatNS(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 7: "7 ns", 12.34: "12.34 ns", 999: "999 ns", 1000: "1.000 µs",
		3412: "3.412 µs", 34_120: "34.12 µs",
		341_200: "341.2 µs", 5e6: "5.000 ms", 61e9: "61.00 s", 86_400e9: "86,400 s", -3412: "-3.412 µs",
		2.5: "2.5 ns", 9.96: "10.0 ns", 10.25: "10.25 ns", 99.99: "99.99 ns", 100.4: "100 ns",
		1e4: "10.00 µs", 1e5: "100.0 µs",
		1e6: "1.000 ms", 1e9: "1.000 s", 999.9e9: "999.9 s", 1e12: "1,000 s", math.NaN(): "–"} {
		if got := FormatNS(ns); got != want {
			t.Errorf("%v: %q, want %q", ns, got, want)
		}
	}
}

func TestFormatShare(t *testing.T) {
	for share, want := range map[float64]string{0: "0 %", 1: "100 %", 0.996: "100 %", 0.994: "99 %", 0.5: "50 %",
		0.0734: "7.3 %", 1.237: "124 %", 12: "1200 %",
		0.1: "10 %", 0.000_012_34: "0.0012 %", 1e-9: "0.0000001 %", -0.25: "-25 %"} {
		if got := FormatShare(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}

func TestFormatCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 20_000: "20,000", 1_967_786: "1,967,786",
		-1000: "-1,000", -999: "-999"} {
		if got := FormatCount(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestFormatRate(t *testing.T) {
	for r, want := range map[float64]string{0.333_333: "0.3333", 1: "1", 99.5: "99.5", 20_000: "20,000",
		100.4: "100", 1_488_095.2: "1,488,095"} {
		if got := FormatRate(r); got != want {
			t.Errorf("%v: %q, want %q", r, got, want)
		}
	}
}

func TestFormatBits(t *testing.T) {
	for b, want := range map[float64]string{1: "1 bit/s", 1e3: "1 kbit/s", 1e6: "1 Mbit/s", 1e9: "1 Gbit/s",
		1e12: "1000 Gbit/s", 672: "672 bit/s", 33_600: "33.6 kbit/s", 1e7: "10 Mbit/s",
		9_944_000: "9.94 Mbit/s", 2.5e9: "2.5 Gbit/s", 4e11: "400 Gbit/s"} {
		if got := FormatBits(b); got != want {
			t.Errorf("%v: %q, want %q", b, got, want)
		}
	}
}

func TestFormatChange(t *testing.T) {
	for share, want := range map[float64]string{0: "+0.0 %", 0.358: "+35.8 %", -0.083: "-8.3 %", 1.24: "+124.0 %",
		3: "+300.0 %", 3.2: "×4.2", 216.75: "×218", 998.5: "×1000", 999: "×1,000", 12_344: "×12,345"} {
		if got := FormatChange(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
	if got := FormatChange(math.NaN()); got != "" {
		t.Errorf("NaN: %q", got)
	}
}
