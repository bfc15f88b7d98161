package compare

import (
	"math"
	"slices"
	"strconv"
)

// shiftPercentiles are the points of a shift function. Each group refines the previous groups, and is left out if there
// are too few runs for so many points.
var shiftPercentiles = [][]float64{
	{10, 50, 90, 99, 99.9},
	{1, 30, 70, 95, 99.99},
	{5, 20, 40, 60, 80, 98, 99.5, 99.8, 99.95, 99.98},
}

// ShiftFunction returns how far B's runs are above A's at percentiles across the whole distribution, in ascending
// order. Each Row is the table's result for that percentile, at a level that all points share (Bonferroni). Their
// intervals are therefore a simultaneous band: if nothing changed, it excludes zero anywhere in at most 5 % of
// comparisons. If a percentile has too few samples, its Row has no interval and a reason in Why. The result is empty if
// no percentile can be tested.
func (p *Pair) ShiftFunction() []Row {
	if len(p.Obstacles) > 0 {
		return nil
	}
	least := leastP(len(measured(p.runsA)), len(measured(p.runsB)))
	if inOneSession(p.A, p.B) {
		a, _ := pairs(p.runsA, p.runsB)
		least = math.Ldexp(1, 1-len(a)) // all signs alike, see fewestPairs
	}
	var percentiles []float64
	level := func(points int) float64 { return tableLevel / float64(points*p.tests()) }
	for i, group := range shiftPercentiles {
		if i == 0 || least <= level(len(percentiles)+len(group)) {
			percentiles = append(percentiles, group...)
		}
	}
	var rows []Row
	for _, v := range slices.Sorted(slices.Values(percentiles)) {
		st := Stat{"p" + strconv.FormatFloat(v, 'f', -1, 64), v / 100}
		rows = append(rows, p.row(st, level(len(percentiles))))
	}
	if !slices.ContainsFunc(rows, Row.Tested) {
		return nil
	}
	return rows
}
