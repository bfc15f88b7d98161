package metrics

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// A loop is stalled if it has made no pass since the previous check, which is a second old or older: more frequent checks share its result.
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
		if got := fmt.Sprint(p.Check(begin.Add(c.after), c.passes...)); got != c.want && (c.want != "" || got != "<nil>") {
			t.Errorf("check %d: %s, want %q", i, got, c.want)
		}
	}
}

func TestHealthz(t *testing.T) {
	scrapePause = 0
	defer func() { scrapePause = time.Second / scrapes }()
	var log logged
	fails := errors.New("loop 0 is stalled")
	hide := must.Get(Serve("127.0.0.1:0", nil, &slow{}, nil, func() error { return fails }, slog.New(slog.NewTextHandler(&log, nil))))(t)
	defer hide()
	_, url, _ := strings.Cut(strings.TrimSpace(log.String()), "url=")
	for _, want := range []string{"503 loop 0 is stalled\n", "200 ok\n"} {
		r := must.Get(http.Get(strings.TrimSuffix(url, "metrics") + "healthz"))(t)
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if got := fmt.Sprintf("%d %s", r.StatusCode, text); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		fails = nil
	}
}
