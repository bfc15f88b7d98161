package main

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// asked answers requests in place of the network.
type asked func(*http.Request) string

func (a asked) RoundTrip(r *http.Request) (*http.Response, error) {
	body := a(r)
	if body == "" {
		return &http.Response{StatusCode: http.StatusUnauthorized, Status: "401 Unauthorized", Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// A cloud is asked for its user data with what its service needs, and a word that is neither a cloud nor a URL is
// named. The appliance's tests have strict services for all three.
func TestDownload(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = asked(func(r *http.Request) string {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" &&
			r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
			return "token"
		case r.Header.Get("X-aws-ec2-metadata-token") == "token", r.Header.Get("Metadata-Flavor") == "Google",
			r.URL.Host == "a":
			return "text"
		case r.Header.Get("Metadata") == "true":
			return base64.StdEncoding.EncodeToString([]byte("text")) + "\n"
		}
		return ""
	})
	for _, from := range []string{"ec2", "gce", "azure", "http://a/b"} {
		if text := must.Get(download(context.Background(), from))(t); text != "text" {
			t.Errorf("%s: %q", from, text)
		}
	}
	if _, err := download(context.Background(), "http://169.254.169.254/latest/user-data"); err == nil ||
		!strings.Contains(err.Error(), "401") {
		t.Errorf("without a token: %v", err)
	}
	for _, from := range []string{"aws", "file:///x", "http:///x", "10.0.0.1/x"} {
		if _, err := download(context.Background(), from); err == nil ||
			!strings.Contains(err.Error(), "ec2, gce or azure") {
			t.Errorf("%s: %v", from, err)
		}
	}
}
