package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// cloud says where a provider serves the user data, and what a request for it needs.
type cloud struct {
	url           string
	header, value string
	token         string // URL of a token, which is then the header's value
	base64        bool
}

// clouds are the providers that rebound.config can name in place of a URL. Their services are at one address, and each
// refuses requests without its header.
var clouds = map[string]cloud{
	// Amazon EC2 User Guide, "Use the Instance Metadata Service to access instance metadata" (IMDSv2).
	"ec2": {url: "http://169.254.169.254/latest/user-data", header: "X-aws-ec2-metadata-token", token: "http://169.254.169.254/latest/api/token"},
	// Compute Engine documentation, "View and query VM metadata". The key is the user's choice; cloud-init uses the
	// same.
	"gce": {url: "http://169.254.169.254/computeMetadata/v1/instance/attributes/user-data", header: "Metadata-Flavor", value: "Google"},
	// Azure documentation, "Azure Instance Metadata Service", user data.
	"azure": {url: "http://169.254.169.254/metadata/instance/compute/userData?api-version=2021-01-01&format=text",
		header: "Metadata", value: "true",
		base64: true},
}

// download returns the configuration at a URL, or a cloud's user data.
func download(ctx context.Context, from string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, known := clouds[from]
	if u, err := url.Parse(from); !known && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return "", fmt.Errorf("kernel command line: rebound.config: %q is neither a URL (http://HOST/PATH) nor ec2, gce or azure", from)
	} else if !known {
		c.url = from
	}
	if c.token != "" {
		var err error
		if c.value, err = request(ctx, http.MethodPut, c.token, "X-aws-ec2-metadata-token-ttl-seconds",
			"60"); err != nil {
			return "", err
		}
	}
	text, err := request(ctx, http.MethodGet, c.url, c.header, c.value)
	if err != nil || !c.base64 {
		return text, err
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.url, err)
	}
	return string(b), nil
}

// request sends a request with a header, or none if its name is empty.
func request(ctx context.Context, method, url, header, value string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	if header != "" {
		r.Header.Set(header, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, answer.Status)
	}
	b, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return string(b), err
}
