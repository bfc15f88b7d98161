package page

import (
	"io"
	"time"
)

// Status is what a running measurement shows of its targets, as a page without scripts.
type Status struct {
	Over, Title string
	Answer      string
	Alerts      []string
	Notes       []string
	Reload      string // address that reloads by itself; empty for none
	Name        string // of what a row is: "target", "second"
	Columns     []string
	Rows        []StatusRow
	Foot        string
	Changes     []StatusChange // the newest first
	ChangesFoot string
}

// StatusRow is a row of a Status. Each value may have several lines.
type StatusRow struct {
	Name   string
	State  string // "up", "down", or anything else; empty for no column of states
	Values [][]string
}

// StatusChange is what happened at a time.
type StatusChange struct {
	At                 time.Time
	Name, Text, Detail string
	Bad                bool
}

// When is the time of a change as the page shows it.
func (c StatusChange) When() string { return c.At.UTC().Format("2006-01-02 15:04:05 UTC") }

// States reports whether the rows have states.
func (s *Status) States() bool { return len(s.Rows) > 0 && s.Rows[0].State != "" }

// WriteStatus writes the page. It needs nothing but itself, and runs no script.
func WriteStatus(w io.Writer, s *Status) error { return page.ExecuteTemplate(w, "status", s) }
