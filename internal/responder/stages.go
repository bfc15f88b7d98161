package responder

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stages logs, at debug level, how long each stage of the start took.
type stages struct {
	log  *slog.Logger
	from time.Time // when the current stage began
}

func newStages(log *slog.Logger) *stages { return &stages{log, time.Now()} }

// done ends the current stage and begins the next.
func (s *stages) done(name string) {
	now := time.Now()
	s.log.Debug("start", "stage", name, "took", now.Sub(s.from).Round(10*time.Microsecond))
	s.from = now
}

// sinceStart is the age of this process, in steps of 10 ms; 0 if it is unknown.
func sinceStart() time.Duration {
	b, _ := os.ReadFile("/proc/self/stat")
	_, rest, _ := strings.Cut(string(b), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	const starttime = 22 - 3 // proc_pid_stat(5), where the first field here is number 3
	if len(fields) <= starttime {
		return 0
	}
	ticks, err := strconv.ParseInt(fields[starttime], 10, 64)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	const tick = 10 * time.Millisecond // of USER_HZ
	return (time.Duration(now.Nano()) - time.Duration(ticks)*tick).Truncate(tick)
}
