package observe

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
)

// pause is the Retry-After of a responder that was queried too often.
const pause = time.Second

var client = &http.Client{Timeout: 5 * time.Second}

// ReadResponder returns the refusals on a responder's metrics page, by reason, and its device's drops. The counters
// include the traffic of all its clients.
func ReadResponder(url string) (out []report.Drop, life Life, err error) {
	r, err := client.Get(url)
	// the page limits its rate
	for tries := 1; err == nil && r.StatusCode == http.StatusTooManyRequests && tries < 5; tries++ {
		r.Body.Close()
		time.Sleep(pause)
		r, err = client.Get(url)
	}
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, life, fmt.Errorf("responder's metrics: %s: %s", url, r.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	refused := families["rebound_refused_total"]
	if refused == nil {
		return nil, life, fmt.Errorf(
			"responder's metrics: %s: no rebound_refused_total (give the URL of a responder's metrics page)", url)
	}
	if out, err = sum(nil, refused, report.RefusedThere, "reason"); err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	if f := families["rebound_device_trouble_total"]; f != nil {
		life.resets, _ = valueOf(f, "kind", "resets")
		out, err = sum(out, f, report.DroppedThere, "kind", "rx_dropped", "tx_dropped", "tx_errors")
	}
	if f := families["process_start_time_seconds"]; f != nil && len(f.Metric) == 1 {
		life.start = f.Metric[0].GetGauge().GetValue()
	}
	if f := families["rebound_device_own_total"]; f != nil && err == nil {
		finished, counted := valueOf(f, "counter", nic.RestartsFinished)
		life.restarting = counted && finished < life.resets
		send, _ := valueOf(f, "counter", sendResets)
		life.resets += send
		out, err = sum(out, f, report.DroppedThere, "counter", "interface_rx_dropped", "interface_rx_missed_errors",
			"interface_rx_fifo_errors",
			"interface_rx_over_errors", "interface_tx_dropped", "interface_tx_errors", "interface_tx_fifo_errors")
	}
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	return out, life, nil
}

// valueOf is a family's counter with the given value of a label, and whether there is one.
func valueOf(f *dto.MetricFamily, label, value string) (n float64, ok bool) {
	for _, m := range f.Metric {
		for _, l := range m.Label {
			if l.GetName() == label && l.GetValue() == value {
				n, ok = n+m.GetCounter().GetValue(), true
			}
		}
	}
	return n, ok
}

// Limits for a page: a responder has a few dozen reasons.
const (
	maxReasons = 200
	maxReason  = 100 // bytes
)

// sum adds a family's counters by the value of one label, all or those named.
func sum(out []report.Drop, f *dto.MetricFamily, place report.Place, label string, only ...string) ([]report.Drop,
	error) {
	for _, m := range f.Metric {
		for _, l := range m.Label {
			value, n := l.GetValue(), m.GetCounter().GetValue()
			if l.GetName() != label || len(only) > 0 && !slices.Contains(only, value) {
				continue
			}
			if !(n >= 0 && n < 1<<53) {
				return nil, fmt.Errorf("%s{%s=%.100q} is %v: want a count", f.GetName(), label, value, n)
			}
			by := "responder: " + value
			i := slices.IndexFunc(out, func(d report.Drop) bool { return d.Place == place && d.By == by })
			if i < 0 {
				if i = len(out); i == maxReasons || len(value) > maxReason {
					return nil, fmt.Errorf("%s has more than %d values of %s, or one of more than %d bytes",
						f.GetName(), maxReasons, label, maxReason)
				}
				out = append(out, report.Drop{Place: place, By: by})
			}
			if out[i].Frames += int64(n); out[i].Frames >= 1<<53 {
				return nil, fmt.Errorf("%s{%s=%q} adds up to %d: want a count", f.GetName(), label, value,
					out[i].Frames)
			}
		}
	}
	return out, nil
}
