// Package telemetry tests what rebound-watch pushes with a real Prometheus and a real OpenTelemetry collector. `make
// telemetry` builds both from Go modules once, into .cache/telemetry, and runs the tests; where they have not been
// built, the tests are skipped.
package telemetry
