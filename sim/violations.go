package sim

import (
	"fmt"
	"maps"
	"slices"
)

// maxViolations bounds the violations kept of each grade: a driver that misbehaves often does so in a loop.
const maxViolations = 100

type violation struct {
	grade Grade
	text  string
	times int
}

// Violations returns the violations so far, oldest first, of both grades: "sim:ixgbe: warning: write of ...".
func (p *Port) Violations() []string { return p.violations(Error, Warning) }

// Errors returns the violations of grade Error: what a driver that works on the real device does not do either.
func (p *Port) Errors() []string { return p.violations(Error) }

func (p *Port) violations(grades ...Grade) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, v := range p.faults {
		if slices.Contains(grades, v.grade) {
			s := fmt.Sprintf("%s: %v: %s", p.Name(), v.grade, v.text)
			if v.times > 1 {
				s += fmt.Sprintf(" (%d times)", v.times)
			}
			all = append(all, s)
		}
	}
	for _, g := range grades {
		if p.dropped[g] > 0 {
			all = append(all, fmt.Sprintf("%s: %v: and %d more", p.Name(), g, p.dropped[g]))
		}
	}
	return all
}

// Drops returns the number of frames from the wire that the device dropped, by reason. They are not the driver's fault,
// but a client that expects the frame should find the reason.
func (p *Port) Drops() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.drops)
}

// ForgetViolations clears the list, for tests that provoke one.
func (p *Port) ForgetViolations() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.dropped = nil, [2]int{}
	if p.rec != nil {
		p.rec.before = nil
	}
}

func (p *Port) violation(g Grade, format string, args ...any) {
	kept, text := 0, fmt.Sprintf(format, args...)
	for i := range p.faults {
		v := &p.faults[i]
		if v.grade != g {
			continue
		}
		if v.text == text {
			v.times++
			return
		}
		kept++
	}
	if kept == maxViolations {
		p.dropped[g]++
		return
	}
	p.faults = append(p.faults, violation{g, text, 1})
	if p.rec != nil {
		p.event(Event{Kind: violationEvent, Name: fmt.Sprintf("%v: %s", g, text)})
		if p.rec.before == nil {
			p.rec.before = p.rec.last(beforeViolation)
		}
	}
}
