package report_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

// fill gives everything that report.json can have a random value.
func fill(rnd *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("<%d> & \u00e9\"%x\"", rnd.IntN(1000), rnd.Uint64()))
	case reflect.Bool:
		v.SetBool(rnd.IntN(2) == 0)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(rnd.Int64N(1 << (1 + rnd.IntN(30))))
	case reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(rnd.Uint64N(256))
	case reflect.Float64:
		v.SetFloat(rnd.NormFloat64() * 1e6)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(rnd, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+rnd.IntN(3), 3))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(rnd, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + rnd.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(rnd, key)
			fill(rnd, value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.UnixMilli(rnd.Int64N(4e12)).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fill(rnd, v.Field(i))
			}
		}
	default:
		panic("no random value for " + v.Type().String())
	}
}

// logs returns series of random intervals, one after the other with gaps between them.
func logs(rnd *rand.Rand) (all []*latency.Series) {
	for _, name := range []string{latency.MainSeries, latency.HardwareSeries, "any_Name-7"}[:1+rnd.IntN(3)] {
		s := &latency.Series{Name: name}
		for at, i := int64(0), 0; i < 1+rnd.IntN(20); i++ {
			at += rnd.Int64N(2) * rnd.Int64N(1e6) * 1000
			end := at + 1000*(1+rnd.Int64N(1e6))
			values := random.Nanoseconds(rnd, rnd.IntN(50))
			s.Intervals = append(s.Intervals, latency.Interval{Start: at, End: end,
				Histogram: latency.FromValues(values)})
			at = end
		}
		s.Sum()
		all = append(all, s)
	}
	return all
}

// Everything in a report's folder is read as it was written.
func TestAnyReportReadsAsWritten(t *testing.T) {
	rnd := random.New(t)
	for range 2 {
		rep := report.New("bench", report.RoundTrip)
		fill(rnd, reflect.ValueOf(rep).Elem())
		rep.Schema, rep.Unfinished, rep.Gaps, rep.Series = report.Schema, nil, nil, logs(rnd)
		rep.Runs = []latency.Run{{Start: 5, End: 5 + rnd.Int64N(2)}}
		dir := filepath.Join(t.TempDir(), "report")
		must.OK(t, report.Write(dir, rep, func(io.Writer, *report.Report) error { return nil }))
		got := must.Get(report.Read(dir))(t)
		var a, b bytes.Buffer
		must.OK(t, report.WriteJSON(&a, rep))
		must.OK(t, report.WriteJSON(&b, got))
		check.Equal(t, b.String(), a.String(), "%s")
		sameSeries(t, got.Series, rep.Series)
	}
}

// An interval that is written to a log is read as it was, and intervals merge to the same whole, however they are
// grouped and in whatever order.
func TestLogsMerge(t *testing.T) {
	rnd := random.New(t)
	for range 5 {
		all := logs(rnd)
		var b bytes.Buffer
		start := time.UnixMilli(rnd.Int64N(4e12))
		must.OK(t, report.WriteHlog(&b, start, all))
		began, got, err := report.ReadHlog(&b, "x.hlog")
		must.OK(t, err)
		check.Equal(t, began, start.UTC(), "it begins at %v")
		sameSeries(t, got, all)
		for _, s := range got {
			var groups [3][]*latency.Histogram
			for _, i := range rnd.Perm(len(s.Intervals)) {
				k := rnd.IntN(len(groups))
				groups[k] = append(groups[k], s.Intervals[i].Histogram)
			}
			sameValues(t, latency.Merge(latency.Merge(groups[0]...), latency.Merge(groups[1]...),
				latency.Merge(groups[2]...)), s.Total)
		}
	}
}

func sameSeries(t *testing.T, got, want []*latency.Series) {
	t.Helper()
	must.Equal(t, len(got), len(want), "%d series")
	for i, s := range got {
		check.Equal(t, s.Name, want[i].Name, "name %s")
		must.Equal(t, len(s.Intervals), len(want[i].Intervals), s.Name+": %d intervals")
		for k, iv := range s.Intervals {
			w := want[i].Intervals[k]
			check.Equal(t, iv.Start, w.Start, s.Name+": an interval starts at %d")
			check.Equal(t, iv.End, w.End, s.Name+": an interval ends at %d")
			sameValues(t, iv.Histogram, w.Histogram)
		}
		sameValues(t, s.Total, want[i].Total)
	}
}

func sameValues(t *testing.T, got, want *latency.Histogram) {
	t.Helper()
	check.Equal(t, got.Count, want.Count, "%d values")
	check.Equal(t, got.Max, want.Max, "max %d")
	check.Same(t, slices.Collect(got.Buckets), slices.Collect(want.Buckets), "buckets %v")
}
