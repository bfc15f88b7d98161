package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

// A loop is stalled if it has made no pass since the previous check, which is a second old or older: more frequent
// checks share its result.
func TestPulse(t *testing.T) {
	var p Pulse
	begin := time.Now()
	for i, c := range []struct {
		after  time.Duration
		passes []uint64
		want   string
	}{
		{0, []uint64{0, 3}, "loop 0 has not started"},
		{900 * time.Millisecond, []uint64{9, 9}, "loop 0 has not started"},
		{time.Second, []uint64{9, 9}, ""},
		{1500 * time.Millisecond, []uint64{9, 9}, ""},
		{21 * time.Second, []uint64{10, 9}, "loop 1 is stalled: no pass in 20s"},
		{22 * time.Second, []uint64{11, 10}, ""},
	} {
		if got := fmt.Sprint(p.Check(begin.Add(c.after), c.passes...)); got != c.want &&
			(c.want != "" || got != "<nil>") {
			t.Errorf("check %d: %s, want %q", i, got, c.want)
		}
	}
}

func TestHealthz(t *testing.T) {
	scrapePause = 0
	defer func() { scrapePause = time.Second / scrapes }()
	fails := errors.New("loop 0 is stalled")
	address, hide := listening(t, func(log *slog.Logger) (func(), error) {
		return Serve("127.0.0.1:0", nil, &slow{}, nil, func() error { return fails }, log)
	})
	defer hide()
	for _, want := range []string{"503 loop 0 is stalled\n", "200 ok\n"} {
		a, body := ask(t, "GET", address, "/healthz", address)
		check.Equal(t, fmt.Sprintf("%d %s", a.StatusCode, body), want, "%q")
		fails = nil
	}
}
