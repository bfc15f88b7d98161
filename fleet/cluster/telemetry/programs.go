//go:build programs

// The program that the tests run beside collector, so that go.mod has what it is built from.
package telemetry

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
)
