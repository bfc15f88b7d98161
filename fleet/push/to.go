package push

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// To is a receiver.
type To struct {
	Interval time.Duration

	url        *url.URL
	timeout    time.Duration
	headers    map[string]string
	attributes []label // of the resource, in OTLP
	plain      bool    // OTLP without compression
	tls        *tls.Config
}

// otlpPath is the end of the path of OTLP's metrics over HTTP. Other paths are remote-write's.
const otlpPath = "/v1/metrics"

// Settings are the receiver and the interval.
func Settings(to *string, interval *time.Duration) []setting.Setting {
	return []setting.Setting{
		setting.String("stats.push_url", to, "", func(text string) error { _, err := parse(text); return err },
			"The URL to push metrics to, with the names and labels that /metrics "+
				"has. If its path ends in /v1/metrics, by OTLP, with exponential histograms: \"http://127.0.0.1:4318/v1/metrics\". Otherwise by Prometheus remote-write 2.0, with native "+
				"histograms: \"http://prometheus:9090/api/v1/write\". Empty: OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT of the environment, or off. "+
				"OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY, and OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, have their usual meaning."),
		setting.Parsed("stats.push_interval", interval, "15s", func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			if err != nil || d < time.Second || d > time.Hour {
				return 0, fmt.Errorf("%q is not a time from \"1s\" to \"1h\"", text)
			}
			return d, nil
		}, "Time between two pushes, \"1s\" to \"1h\"."),
	}
}

func parse(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not a URL like http://127.0.0.1:4318%s", text, otlpPath)
	}
	return u, nil
}

// Choose returns the receiver that a setting or the environment names, nil if neither does.
func Choose(text string, interval time.Duration, getenv func(string) string) (*To, error) {
	t := &To{Interval: interval, timeout: 10 * time.Second}
	var err error
	if t.url, err = parse(text); err != nil {
		return nil, err
	}
	env := func(name string) (string, string) {
		for _, n := range []string{"OTEL_EXPORTER_OTLP_METRICS_" + name, "OTEL_EXPORTER_OTLP_" + name} {
			if v := getenv(n); v != "" {
				return n, v
			}
		}
		return "", ""
	}
	if t.url == nil {
		name, endpoint := env("ENDPOINT")
		if endpoint == "" || getenv("OTEL_METRICS_EXPORTER") == "none" || getenv("OTEL_SDK_DISABLED") == "true" {
			return nil, nil
		}
		if protocol, v := env("PROTOCOL"); v == "grpc" {
			return nil, fmt.Errorf("%s: grpc is not supported (set it to http/protobuf, whose port is usually 4318)",
				protocol)
		}
		if t.url, err = parse(endpoint); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
			t.url.Path = strings.TrimSuffix(t.url.Path, "/") + otlpPath
		}
	}
	if name, v := env("TIMEOUT"); v != "" {
		ms, err := strconv.Atoi(v)
		if err != nil || ms < 1 {
			return nil, fmt.Errorf("%s: %q is not a number of milliseconds", name, v)
		}
		t.timeout = time.Duration(ms) * time.Millisecond
	}
	name, v := env("HEADERS")
	list, err := pairs(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.headers = map[string]string{}
	for _, l := range list {
		t.headers[l.name] = l.value
	}
	_, compression := env("COMPRESSION")
	t.plain = compression == "none"
	if t.tls, err = secrets(env); err != nil {
		return nil, err
	}
	if t.attributes, err = pairs(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		t.attributes = append(t.attributes, label{"service.name", name})
	}
	return t, nil
}

// pairs reads a list as in "a=b,c=d", whose values are URL-encoded.
func pairs(text string) (all []label, err error) {
	for _, p := range strings.Split(text, ",") {
		if strings.TrimSpace(p) == "" {
			continue
		}
		name, value, ok := strings.Cut(p, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("want NAME=VALUE, separated by commas")
		}
		if value, err = url.PathUnescape(strings.TrimSpace(value)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, label{name, value})
	}
	return all, nil
}

// String is the receiver's URL without a password.
func (t *To) String() string { return t.url.Redacted() }

func (t *To) otlp() bool { return strings.HasSuffix(t.url.Path, otlpPath) }

func (t *To) format() string {
	if t.otlp() {
		return "OTLP"
	}
	return "remote-write 2.0"
}

func (t *To) batch(o *Options) batch {
	if t.otlp() {
		return &otlpBatch{options: o, compress: !t.plain}
	}
	return &remoteBatch{options: o}
}

// resource returns what the resource of OTLP is described by: what the environment says, or else these.
func (t *To) resource(defaults ...label) (all []label) {
	for _, l := range slices.Concat(defaults, t.attributes) {
		if i := slices.IndexFunc(all, func(a label) bool { return a.name == l.name }); i >= 0 {
			all[i] = l
		} else {
			all = append(all, l)
		}
	}
	return all
}

// secrets reads the certificates that the environment names.
func secrets(env func(string) (string, string)) (*tls.Config, error) {
	c := &tls.Config{}
	if name, file := env("CERTIFICATE"); file != "" {
		text, err := atomicfile.Read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: %s has no certificate", name, file)
		}
	}
	name, certificate := env("CLIENT_CERTIFICATE")
	keyName, key := env("CLIENT_KEY")
	if certificate == "" && key == "" {
		return c, nil
	}
	public, err := atomicfile.Read(certificate)
	private, failed := atomicfile.Read(key)
	pair := tls.Certificate{}
	if err = errors.Join(err, failed); err == nil {
		pair, err = tls.X509KeyPair(public, private)
	}
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", cmp.Or(name, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
			cmp.Or(keyName, "OTEL_EXPORTER_OTLP_CLIENT_KEY"), err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// transport makes a transport with one connection.
func (t *To) transport() http.RoundTripper {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: t.tls, MaxIdleConns: 1,
		IdleConnTimeout: 5 * time.Minute, ForceAttemptHTTP2: true}
}
