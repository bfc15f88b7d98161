package latency

import (
	"fmt"
	"math"
	"strconv"
)

// FormatNS returns nanoseconds with four significant digits in a suitable unit: "812 ns", "3.412 µs", "1.208 s". NaN
// (unknown) becomes a dash.
func FormatNS(ns float64) string {
	if math.IsNaN(ns) {
		return "–"
	}
	v, unit := ns, "ns"
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if math.Abs(ns) >= u.ns {
			v, unit = ns/u.ns, u.name
			break
		}
	}
	switch a := math.Abs(v); {
	case unit == "ns" && (a >= 100 || v == math.Trunc(v)):
		return fmt.Sprintf("%.0f %s", v, unit)
	case a >= 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	case a >= 10:
		return fmt.Sprintf("%.2f %s", v, unit)
	case unit == "ns":
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.3f %s", v, unit)
}

// FormatSigned is FormatNS with a sign, for differences.
func FormatSigned(ns float64) string {
	if ns < 0 {
		return "-" + FormatNS(-ns)
	}
	return "+" + FormatNS(ns)
}

// FormatShare returns a share as a percentage with two significant digits, or all digits of the integer part: "0.0012
// %", "7.3 %", "100 %". Unlike %.2g it never uses an exponent.
func FormatShare(share float64) string {
	percent := 100 * share
	if math.Abs(percent) >= 99.5 {
		return fmt.Sprintf("%.0f %%", percent)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(percent, 'g', 2, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64) + " %"
}
