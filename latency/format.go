package latency

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// This file has the one way in which the commands write each kind of number. proof/numbers finds others in their
// output.

// FormatNS returns nanoseconds with four significant digits in a suitable unit: "812 ns", "3.412 µs", "1.208 s".
// From 1,000 s on it has no fraction. NaN (unknown) becomes a dash.
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
	case a >= 1000: // seconds
		return FormatCount(int64(math.Round(v))) + " " + unit
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

// FormatDuration is FormatNS of d. Settings are not written like this but as their flags accept them: 250ms.
func FormatDuration(d time.Duration) string { return FormatNS(float64(d)) }

// FormatCount returns a number with commas between thousands: "2,376,267".
func FormatCount[T int | int64 | uint64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// FormatRate returns a number per second as FormatCount does, a slow one with four digits: "20,000", "0.3333".
func FormatRate(r float64) string {
	if r >= 100 {
		return FormatCount(int64(math.Round(r)))
	}
	return fmt.Sprintf("%.4g", r)
}

// FormatBits returns bits per second with three digits in a suitable unit: "9.94 Mbit/s", "672 bit/s".
func FormatBits(perSecond float64) string {
	for _, u := range []struct {
		bits float64
		name string
	}{{1e9, "Gbit/s"}, {1e6, "Mbit/s"}, {1e3, "kbit/s"}} {
		if perSecond >= u.bits {
			return threeDigits(perSecond/u.bits) + " " + u.name
		}
	}
	return fmt.Sprintf("%.0f bit/s", perSecond)
}

func threeDigits(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// MostPercent is the greatest change that is written in per cent, as a share: 300 % more is four times as much.
const MostPercent = 3

// FormatChange returns a relative change, of which 0 is none: "+35.8 %", "-8.3 %", and "×217" for one above 300 %. It
// returns "" for NaN, which has no base.
func FormatChange(share float64) string {
	switch {
	case math.IsNaN(share):
		return ""
	case share > MostPercent:
		return FormatFactor(1 + share)
	}
	return fmt.Sprintf("%+.1f %%", 100*share)
}

// FormatFactor returns "×4.2", with three digits, or all of the integer part.
func FormatFactor(f float64) string {
	if f >= 1000 {
		return "×" + FormatCount(int64(math.Round(f)))
	}
	return "×" + threeDigits(f)
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
