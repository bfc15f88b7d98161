// Package cluster tests the Helm chart in a real Kubernetes on this machine: etcd, one control plane and several
// kubelets with containerd, each node in its own namespaces (mounts, processes, network, host name). `make cluster`
// builds the programs from Go modules once, into .cache/cluster, and runs the tests; where they have not been built,
// the tests are skipped.
//
// Everything runs below one process in a PID namespace. It dies with the test, however the test ends, and takes the
// processes, mounts, interfaces and containers with it. Only empty cgroups outlive a SIGKILL; the next run removes
// them.
package cluster
