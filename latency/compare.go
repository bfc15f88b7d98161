package latency

import "io"

// Comparison holds several reports against the first of them.
type Comparison struct {
	Reports []*Report
	// Obstacles are the reasons why the numbers must not be held against each other; they are printed before any number.
	Obstacles []string
}

// Compare holds others against base.
func Compare(base *Report, others ...*Report) *Comparison {
	return &Comparison{Reports: append([]*Report{base}, others...)}
}

// Print writes the comparison as text tables.
func (c *Comparison) Print(w io.Writer) error { return nil }

// WriteHTML writes the comparison as one self-contained page.
func (c *Comparison) WriteHTML(w io.Writer) error { return nil }

// Exceeded returns one line for each limit that a report exceeds against the base.
func (c *Comparison) Exceeded(limits []Limit) []string { return nil }

// Limit is one fail-if expression, "p99>+5%+200ns": the difference in a statistic beyond which a comparison fails.
type Limit struct{}

// ParseLimits parses expressions separated by commas.
func ParseLimits(s string) ([]Limit, error) { return nil, nil }
