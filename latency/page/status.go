package page

import (
	"io"
	"time"
)

// Status is the page of a running measurement with its targets, without scripts.
type Status struct {
	Over, Title string
	Answer      string
	Alerts      []string
	Notes       []string
	Reload      string // address of the variant that reloads automatically; empty for none
	Name        string // what a row stands for: "target", "second"
	Columns     []string
	Rows        []StatusRow
	Foot        string
	Changes     []StatusChange // newest first
	ChangesFoot string
}

// StatusRow is a row of a Status. Each value may have several lines.
type StatusRow struct {
	Name   string
	State  string // "up", "down" or other text; empty for no column of states
	Values [][]string
}

// StatusChange is an event with its time.
type StatusChange struct {
	At                 time.Time
	Name, Text, Detail string
	Bad                bool
}

// When formats the time of a change for the page.
func (c StatusChange) When() string { return c.At.UTC().Format("2006-01-02 15:04:05 UTC") }

// States reports whether the rows have states.
func (s *Status) States() bool { return len(s.Rows) > 0 && s.Rows[0].State != "" }

// WriteStatus writes the page, which is self-contained and has no script.
func WriteStatus(w io.Writer, s *Status) error { return page.ExecuteTemplate(w, "status", s) }
