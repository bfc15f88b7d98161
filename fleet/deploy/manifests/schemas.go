//go:build never

package manifests

// go.mod keeps the module whose files the tests read.
import _ "sigs.k8s.io/kubectl-validate/pkg/openapiclient"
