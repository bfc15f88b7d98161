package attribution

import (
	"cmp"
	"slices"
)

const (
	timelineKinds = 5   // of each host
	timelineSpans = 400 // of a kind, about
)

// Track is when one kind of cause had a polling core.
type Track struct {
	Side  string `json:"side"`
	Text  string `json:"text"`
	Name  string `json:"name,omitempty"` // of one of several of its kind, such as a thread
	Took  int64  `json:"took_ns"`        // in all spans
	Spans []Span `json:"spans"`          // in the order of time
}

// Span is a part of a Track: causes with less than a four-hundredth of the measurement between them are one.
type Span struct {
	At     int64 `json:"at_us"` // in µs since 1970 by this host's clock
	Length int64 `json:"length_us"`
	Took   int64 `json:"took_ns"` // of it the causes took
}

// Timeline returns the kinds of causes that had a core of a host for the longest, the longest first. What counters
// found is left out, because they do not say when it was. Times are ns since 1970 by this host's clock; the measurement
// was from from to to.
func Timeline(side Side, all []Interval, from, to int64) []Track {
	type kind struct{ text, name string }
	at := map[kind]int{}
	var tracks []Track
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Interval) int { return cmp.Compare(a.Start, b.Start) })
	least := (to - from) / timelineSpans
	for _, c := range all {
		start, end := max(c.Start, from), min(c.End, to)
		if c.Text == "" || c.Weak || start >= end {
			continue
		}
		k, ok := at[kind{c.Text, c.Name}]
		if !ok {
			k, at[kind{c.Text, c.Name}] = len(tracks), len(tracks)
			tracks = append(tracks, Track{Side: side.String(), Text: c.Text, Name: c.Name})
		}
		t := &tracks[k]
		t.Took += end - start
		if n := len(t.Spans); n > 0 {
			if s := &t.Spans[n-1]; start/1000 <= s.At+s.Length+least/1000 {
				s.Length = max(s.Length, (end+999)/1000-s.At)
				s.Took += end - start
				continue
			}
		}
		t.Spans = append(t.Spans, Span{start / 1000, (end+999)/1000 - start/1000, end - start})
	}
	slices.SortStableFunc(tracks, func(a, b Track) int { return cmp.Compare(b.Took, a.Took) })
	return tracks[:min(len(tracks), timelineKinds)]
}
