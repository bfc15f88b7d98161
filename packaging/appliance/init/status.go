package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// status is what console and pages show. Its JSON form is the page /status.
type status struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Kernel  string    `json:"kernel"`
	Started time.Time `json:"started"`
	Mode    string    `json:"mode,omitempty"`
	State   string    `json:"state"`
	Problem string    `json:"problem,omitempty"` // with file, line and key if it is the configuration's

	Configuration string   `json:"configuration"` // where it came from
	Stick         string   `json:"stick"`
	Boot          string   `json:"boot,omitempty"`    // the file that booted, and what became of its counter
	Missing       []string `json:"missing,omitempty"` // from the kernel's command line
	Management    string   `json:"management"`
	Clock         string   `json:"clock"`
	Watchdog      string   `json:"watchdog"`
	Cards         []string `json:"cards,omitempty"`

	Card       string   `json:"card,omitempty"`
	Core       *int     `json:"core,omitempty"`
	Ready      string   `json:"ready,omitempty"` // the responder's line
	Link       string   `json:"link,omitempty"`
	Answered   float64  `json:"answered"`
	PerSecond  float64  `json:"answered_per_second"`
	GapP999    string   `json:"polling_gap_p999,omitempty"`
	GapMax     string   `json:"polling_gap_max,omitempty"`
	Celsius    string   `json:"temperature,omitempty"`
	Restarts   int      `json:"restarts"`
	LastExit   string   `json:"last_exit,omitempty"`
	Reports    []string `json:"reports,omitempty"`
	ReadyAfter float64  `json:"ready_seconds,omitempty"` // from the start of the kernel to the first ready line
	MemoryMB   float64  `json:"memory_mb"`
}

// shown is the status with its lock.
type shown struct {
	mu sync.Mutex
	s  status
}

func (s *shown) set(change func(*status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.s)
}

func (s *shown) get() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.s
	out.Cards, out.Missing, out.Reports = slices.Clone(out.Cards), slices.Clone(out.Missing), slices.Clone(out.Reports)
	return out
}

// text is the screen.
func (s *status) text() string {
	var b strings.Builder
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %-14s %s\n", name, value)
		}
	}
	fmt.Fprintf(&b, "Rebound %s   %s   Linux %s\n\n", s.Version, s.Name, s.Kernel)
	row("mode", s.Mode)
	row("state", s.State)
	row("problem", s.Problem)
	row("answers", s.Ready)
	row("card", s.Card)
	row("link", s.Link)
	if s.Ready != "" {
		row("replies", fmt.Sprintf("%.0f/s, %.0f in total", s.PerSecond, s.Answered))
		row("polling gap", fmt.Sprintf("p99.9 %s, max %s", s.GapP999, s.GapMax))
	}
	row("temperature", s.Celsius)
	for _, c := range s.Cards {
		row("supported card", c)
	}
	row("configuration", s.Configuration)
	row("management", s.Management)
	row("clock", s.Clock)
	row("stick", s.Stick)
	row("boot", s.Boot)
	row("watchdog", s.Watchdog)
	if len(s.Missing) > 0 {
		row("warning", "missing on the kernel's command line: "+strings.Join(s.Missing, " "))
	}
	if s.Restarts > 0 {
		row("restarts", fmt.Sprintf("%d, the last one: %s", s.Restarts, s.LastExit))
	}
	return b.String()
}

// summary is the line for serial consoles, without what changes all the time.
func (s *status) summary() string {
	parts := []string{s.State}
	for _, p := range []string{s.Problem, s.Ready, s.Link} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, "; ")
}
