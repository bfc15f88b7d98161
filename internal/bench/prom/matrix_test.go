package prom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
)

// mesh answers as a Prometheus that has scraped three watches for two days. The path a → c takes half longer today, b → a loses all, and
// c has no yesterday. Nothing was scraped before since, and the metric missing never.
func mesh(t *testing.T, since time.Time, missing string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		result := []any{}
		defer func() {
			kind := "matrix"
			if strings.HasPrefix(query, "count") {
				kind = "vector"
			}
			json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": kind, "result": result}})
		}()
		if missing != "" && strings.HasPrefix(query, missing+"{") {
			return
		}
		if strings.HasPrefix(query, "count by (instance)") {
			for _, h := range "abc" {
				result = append(result, map[string]any{"metric": map[string]string{"instance": string(h)}, "value": []any{0, "2"}})
			}
			return
		}
		var start, end, step float64
		fmt.Sscan(r.FormValue("start"), &start)
		fmt.Sscan(r.FormValue("end"), &end)
		fmt.Sscan(r.FormValue("step"), &step)
		today := start > float64(now.Add(-3*time.Hour).Unix())
		for _, from := range "abc" {
			if !strings.Contains(query, fmt.Sprintf("instance=%q", string(from))) {
				continue
			}
			for _, to := range "abc" {
				if from == to || from == 'c' && !today {
					continue
				}
				labels := map[string]string{"instance": string(from), "target": "icmp:" + string(to)}
				silent := from == 'b' && to == 'a'
				var values, moments []any
				h := &history{counts: map[int]float64{}}
				rnd := rand.New(rand.NewPCG(uint64(from), uint64(to)))
				counted := 0
				for at := start; at <= end+0.001; at += step {
					if at < float64(since.Unix()) {
						continue
					}
					n := int(at - max(start, float64(since.Unix())))
					if strings.HasPrefix(query, "rebound_lost") && (!silent || strings.HasPrefix(query, "rebound_lost_uncertain")) {
						n = 0
					}
					values = append(values, []any{at, fmt.Sprint(n)})
					level := 50e-6
					if from == 'a' && to == 'c' && today {
						level = 75e-6
					}
					for ; !strings.HasPrefix(query, "rebound_lost") && counted < n && !silent; counted++ {
						h.add(level * (1 + 0.1*rnd.ExpFloat64()))
					}
					moments = append(moments, []any{at, h.answer()})
				}
				if len(values) == 0 {
					continue
				}
				each := map[string]any{"metric": labels}
				if strings.HasPrefix(query, DefaultMetric) {
					each["histograms"] = moments
				} else {
					each["values"] = values
				}
				result = append(result, each)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestMatrix(t *testing.T) {
	o := MatrixOptions{At: now, Range: time.Hour, Before: 24 * time.Hour, Windows: 12, FromName: "instance", ToName: "target"}
	m, err := (&Server{Base: mesh(t, time.Unix(0, 0), "").URL}).Matrix(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(m.From, " ") != "a b c" || strings.Join(m.To, " ") != "icmp:a icmp:b icmp:c" || len(m.Cells) != 6 {
		t.Fatalf("%v to %v, %d cells", m.From, m.To, len(m.Cells))
	}
	for pair, want := range map[page.Pair]struct {
		p50     float64
		lost    int64
		verdict compare.Verdict
		why     string
	}{
		{From: "a", To: "icmp:b"}: {53.5e3, 0, compare.Noise, ""}, {From: "a", To: "icmp:c"}: {80e3, 0, compare.Slower, ""},
		{From: "b", To: "icmp:a"}: {0, 3600, compare.Unknown, "no replies"}, {From: "c", To: "icmp:a"}: {53.5e3, 0, compare.Unknown, "no baseline"},
	} {
		c := m.Cells[pair]
		if c == nil || math.Abs(c.P50-want.p50) > 0.03*want.p50 || c.Lost != want.lost || c.Sent != 3600 || c.Verdict != want.verdict || !strings.Contains(c.Why, want.why) {
			t.Errorf("%v: %+v", pair, c)
		}
	}
	if shift := m.Cells[page.Pair{From: "a", To: "icmp:c"}].Shift; math.Abs(shift-26.7e3) > 3e3 {
		t.Errorf("shift %v", shift)
	}
	var html, text bytes.Buffer
	if err := page.WriteMatrix(&html, m); err != nil {
		t.Fatal(err)
	}
	if err := page.PrintMatrix(&text, m); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 of 6 paths are slower", "1 of 6 paths returned no replies", "a → icmp:c", "b → icmp:a", "100 %"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, bad := range []string{"http://", "https://", "src=", "@import", "ZgotmplZ"} {
		if strings.Contains(html.String(), bad) {
			t.Errorf("the page has %q: it is to need nothing but itself", bad)
		}
	}
	for _, want := range []string{"+ a -> icmp:c: p50 slower by", "! b -> icmp:a: 100 % lost (3600 of 3600)", "6 paths: 1 slower, 0 faster, 2 without a change, 3 without a verdict"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	for _, c := range []struct {
		change func(*MatrixOptions)
		says   string
	}{{func(o *MatrixOptions) { o.ToName = "site" }, "without the label site"}, {func(o *MatrixOptions) { o.FromName = "host" }, "nothing of it"}} {
		o := o
		c.change(&o)
		if _, err := (&Server{Base: mesh(t, time.Unix(0, 0), "").URL}).Matrix(context.Background(), o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %s", err, c.says)
		}
	}
}

// A watch that began minutes ago is drawn from what there is, within the default range of an hour.
func TestMatrixOfAYoungWatch(t *testing.T) {
	o := MatrixOptions{At: now, Range: time.Hour, Before: 24 * time.Hour, Windows: 12, FromName: "instance", ToName: "target"}
	for _, age := range []time.Duration{50 * time.Minute, 7 * time.Minute, 90 * time.Second} {
		m, err := (&Server{Base: mesh(t, now.Add(-age), "").URL}).Matrix(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		var html, text bytes.Buffer
		if err := errors.Join(page.WriteMatrix(&html, m), page.PrintMatrix(&text, m)); err != nil {
			t.Fatal(err)
		}
		if c := m.Cells[page.Pair{From: "a", To: "icmp:b"}]; math.Abs(c.P50-53.5e3) > 2e3 || c.Sent < int64(age.Seconds()/4) || c.Why == "no replies" {
			t.Errorf("%v: the path that answers is %+v", age, c)
		}
		if !regexp.MustCompile(`! b -> icmp:a: 100 % lost \((\d+) of (\d+)\)`).MatchString(text.String()) || !strings.Contains(html.String(), "100 %") {
			t.Errorf("%v: the path without replies is left out:\n%s", age, &text)
		}
		if age < 30*time.Minute && !strings.Contains(text.String(), "6 of 6 paths have data for only part of the 1h") {
			t.Errorf("%v: no note on the range:\n%s", age, &text)
		}
	}
}

// Without a counter of lost probes, the loss of a path is a range from none to all probes without a reply.
func TestMatrixWithoutLossCounters(t *testing.T) {
	o := MatrixOptions{At: now, Range: time.Hour, Before: 24 * time.Hour, Windows: 12, FromName: "instance", ToName: "target"}
	for _, missing := range []string{"rebound_lost_total", "rebound_lost_uncertain_total"} {
		m, err := (&Server{Base: mesh(t, time.Unix(0, 0), missing).URL}).Matrix(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if c := m.Cells[page.Pair{From: "b", To: "icmp:a"}]; c.Lost != 3600 || c.LostUncertain != 3600 {
			t.Errorf("without %s: %+v", missing, c)
		}
		if c := m.Cells[page.Pair{From: "a", To: "icmp:b"}]; c.Lost != 0 || c.LostUncertain != 0 {
			t.Errorf("without %s, every probe answered: %+v", missing, c)
		}
		if !slices.ContainsFunc(m.Notes, func(n string) bool { return strings.Contains(n, "6 of 6 paths have no "+missing) }) {
			t.Errorf("no note names %s: %q", missing, m.Notes)
		}
	}
}
