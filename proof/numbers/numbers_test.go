package numbers

import "testing"

func TestOthers(t *testing.T) {
	for text, want := range map[string]int{
		"p50 4.567 µs (-35.8 %), 0 of 1,967,786 lost":  0,
		"use -duration 250ms or -rate 20000":           0,
		"shift -35.8%":                                 1,
		"slower by 21675 %":                            1,
		"slower by 21,675 %":                           1,
		"0.0049 % lost (1 of 20,361)":                  0,
		"5012 paths":                                   1,
		"has 1200 of 1,300":                            1,
		"took 1.5s":                                    1,
		"0 of 20361 lost":                              1,
		"0 of 20\u202f361 lost":                        1,
		"10 at (0.0 Mbit/s on the wire)":               1,
		"has 1 runs":                                   1,
		"1 of 4 points lost probes":                    0,
		"1 of 9 paths fail":                            1,
		"1 of 9 paths fails":                           0,
		"2 of 9 paths fail":                            0,
		"8 run, each":                                  1,
		"p50 NaN":                                      1,
		"<html><svg>12345 1%</svg><p>1,234</p></html>": 0,
	} {
		if got := Others(text, nil); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}
