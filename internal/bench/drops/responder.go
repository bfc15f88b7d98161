package drops

import (
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rebound-nic/rebound/latency/report"
)

// pause is what a responder requests that was asked too often (Retry-After).
const pause = time.Second

var client = &http.Client{Timeout: 5 * time.Second}

// ReadResponder returns what a responder's metrics page says it refused, by reason, and what its device dropped. The counters have
// the traffic of all its clients.
func ReadResponder(url string) ([]report.Drop, error) {
	r, err := client.Get(url)
	for tries := 1; err == nil && r.StatusCode == http.StatusTooManyRequests && tries < 5; tries++ { // the page limits its rate
		r.Body.Close()
		time.Sleep(pause)
		r, err = client.Get(url)
	}
	if err != nil {
		return nil, fmt.Errorf("responder's metrics: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("responder's metrics: %s: %s", url, r.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	refused := families["rebound_refused_total"]
	if refused == nil {
		return nil, fmt.Errorf("responder's metrics: %s: no rebound_refused_total (give the URL of a responder's metrics page)", url)
	}
	out := sum(nil, refused, report.RefusedThere, "reason")
	if f := families["rebound_device_trouble_total"]; f != nil {
		out = sum(out, f, report.DroppedThere, "kind", "rx_dropped", "tx_dropped", "tx_errors")
	}
	if f := families["rebound_device_own_total"]; f != nil {
		out = sum(out, f, report.DroppedThere, "counter", "interface_rx_dropped", "interface_rx_missed_errors", "interface_rx_fifo_errors",
			"interface_rx_over_errors", "interface_tx_dropped", "interface_tx_errors", "interface_tx_fifo_errors")
	}
	return out, nil
}

// sum adds a family's counters by the value of one label, all or those named.
func sum(out []report.Drop, f *dto.MetricFamily, place report.Place, label string, only ...string) []report.Drop {
	add := func(value string, n float64) {
		for i := range out {
			if out[i].Place == place && out[i].By == "responder: "+value {
				out[i].Frames += int64(n)
				return
			}
		}
		out = append(out, report.Drop{Place: place, By: "responder: " + value, Frames: int64(n)})
	}
	for _, m := range f.Metric {
		for _, l := range m.Label {
			wanted := len(only) == 0
			for _, o := range only {
				wanted = wanted || o == l.GetValue()
			}
			if l.GetName() == label && wanted {
				add(l.GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	return out
}
