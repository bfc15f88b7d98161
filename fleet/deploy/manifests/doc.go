// Package manifests validates the Kubernetes manifests and the Grafana dashboards by the schemas of their programs. It
// is a separate module, because these schemas come with the sources of Kubernetes, which compile for minutes.
package manifests
