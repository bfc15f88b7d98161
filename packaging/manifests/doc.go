// Package manifests validates the Kubernetes manifests and the Grafana dashboards by the schemas of their programs. It is a module of its
// own, because these schemas come with the sources of Kubernetes, which compile for minutes.
package manifests
