package measure

import (
	"fmt"

	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/latency/schedule"
)

// Phases are the names of the variants of a session with a load.
var Phases = []string{"before", "during", "after"}

// phases is the order of a session with a load: all runs of a phase, followed by those of the next.
func phases(series, runs int) (blocks []schedule.Block) {
	for k := range series {
		for range runs {
			blocks = append(blocks, schedule.Block{Order: []int{k}})
		}
	}
	return blocks
}

// phase starts the load before the first run of the second phase, and stops it before the first of the third.
func (s *session) phase(k int) (err error) {
	switch {
	case s.Under == "":
	case k == 1 && s.load == nil && !s.loaded:
		s.loaded = true
		s.Log.Info("the load begins", "command", s.Under)
		s.load, err = StartLoad(s.Under, s.core.Rest())
	case k > 1:
		s.endLoad()
	}
	return err
}

// watchLoad notes a load that ended before its phase.
func (s *session) watchLoad(each *Series) {
	if s.load == nil {
		return
	}
	if how, ended := s.load.Ended(); ended {
		s.load = nil
		text := "the load ended before its phase did, so a part of this phase was measured without it: " +
			sanitize.Text(how)
		each.Warnings = append(each.Warnings, text)
		s.Log.Warn(text, "command", s.Under)
	}
}

func (s *session) endLoad() {
	if s.load != nil {
		s.load.Stop()
		s.load = nil
		s.Log.Info("the load has ended")
	}
}

func underNote(name, command string, anonymous bool) string {
	if anonymous {
		command = "a command, which an anonymous report leaves out"
	}
	return fmt.Sprintf("measured %s the load: %s", name, command)
}
