// Package manifests validates the Kubernetes manifests and the Grafana dashboards by the schemas of their programs. It
// is a separate module, because the product needs none of the modules that have these schemas.
package manifests
