package answer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/golden"
)

// What is read of Prometheus' answers, and why others are refused.
func TestParse(t *testing.T) {
	var b strings.Builder
	const vector, matrix = `"resultType":"vector","result":`, `"resultType":"matrix","result":`
	histogram := func(buckets string) string {
		return vector + `[{"metric":{},"histogram":[1,{"count":"3","sum":"6","buckets":[` + buckets + `]}]}]`
	}
	for _, data := range []string{
		vector + `[{"metric":{"a":"b"},"value":[1.5,"7"]}]`, vector + `[null]`, vector + `{}`, vector + `null`,
		histogram(`[0,"1","2","3"],[0,"2","4","0"]`), histogram(`[0,"2","1","3"]`), histogram(`[0,"1","1","-1"]`),
		histogram(`[0,"1","1","999999999999999"],[0,"1","2","1"]`),
		histogram(`[0,"1","1","999999999999998"],[0,"1","2","1"]`),
		matrix + `[{"metric":{"a":"b"},"values":[[1,"0"],[2,"999999999999999"]]}]`,
		matrix + `[{"metric":{},"values":[[2,"0"],[2,"1"]]}]`, matrix + `[{"metric":{},"values":[[2,"1e15"]]}]`,
		matrix + `[{"metric":{},"values":[[2,"-1"]]}]`, matrix + `[null]`, matrix + `7`,
		matrix + `[{"metric":{},"histograms":[[1,{"count":"1","sum":"2","buckets":[]}],[2,{"count":"2","sum":"4","buckets":[]}]]}]`,
		matrix + `[{"metric":{},"histograms":[[2,{"count":"1","sum":"2","buckets":[]}],[2,{"count":"2","sum":"4","buckets":[]}]]}]`,
		matrix + `[{"metric":{},"histograms":[[1,null]]}]`, `"resultType":"scalar","result":[1,"2"]`,
	} {
		series, err := Parse([]byte(`{"status":"success","data":{` + data + `}}`))
		fmt.Fprintf(&b, "%s\n\t%+v %v\n", data, utc(series), err)
	}
	for _, text := range []string{`{"status":"error","error":"x\u001b"}`, `{`} {
		_, err := Parse([]byte(text))
		fmt.Fprintf(&b, "%s\n\t%v\n", text, err)
	}
	_, err := FromValue(nil)
	fmt.Fprintln(&b, err)

	at := func(minute int, count float64, buckets ...Bucket) Moment {
		return Moment{At: time.Unix(int64(60*minute), 0).UTC(), Count: count, Sum: count * 1e-6, Buckets: buckets}
	}
	low, high := func(n float64) Bucket { return Bucket{1e-6, 2e-6, n} },
		func(n float64) Bucket { return Bucket{2e-6, 4e-6, n} }
	for what, all := range [][]Moment{
		nil, {at(0, 1, low(1))}, {at(0, 1, low(1)), at(1, 1, low(1))},
		{at(0, 10, low(10)), at(1, 30, low(25), high(5)), at(2, 60, low(50), high(10), Bucket{-1e-6, 1e-6, 5})},
		{at(0, 10, low(10)), at(2, 30, low(30)), at(3, 40, low(40))},
		{at(0, 10, low(10)), at(1, 5, low(5)), at(2, 40, low(40))},
		{at(0, 2, Bucket{1e-6, 1.5e-6, 1}, Bucket{1.5e-6, 2e-6, 1}), at(1, 3, low(3)), at(2, 9, low(9))},
	} {
		rep, err := Report(all, time.Unix(0, 0).UTC(), time.Minute, 4)
		fmt.Fprintf(&b, "%d: %v\n", what, err)
		if err == nil {
			m := rep.Main()
			fmt.Fprintf(&b, "\t%v to %v, %d, %d runs, resolution %v, %q %q\n\t%d %d %d\n", rep.Start, rep.End,
				rep.Interval,
				len(rep.Runs), rep.Resolution, rep.Notes, rep.Warnings, m.Summary.Count, m.Summary.P50,
				m.Summary.P90)
			fmt.Fprintf(&b, "\t%+v\n", rep.Runs)
		}
	}
	golden.Equal(t, "testdata/answers.txt", b.String())
}

// utc has the times of a result in a zone that is the same everywhere.
func utc(all []Series) []Series {
	for _, s := range all {
		for i := range s.Values {
			s.Values[i].At = s.Values[i].At.UTC()
		}
		for i := range s.Histograms {
			s.Histograms[i].At = s.Histograms[i].At.UTC()
		}
	}
	return all
}
