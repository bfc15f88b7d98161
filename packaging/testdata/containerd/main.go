// Prints containerd's default seccomp profile for containers, and what it adds for each capability, in the format of
// profile.json:
//
//	cd $(mktemp -d) && go mod init x && cp .../packaging/testdata/containerd/main.go . &&
//	go get github.com/containerd/containerd/v2/contrib/seccomp@v2.4.2 && GOARCH=amd64 go run . >profile.json
package main

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func profile(capabilities ...string) *specs.LinuxSeccomp {
	return seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}})
}

func main() {
	base, with := profile(), map[string][]specs.LinuxSyscall{}
	for _, c := range []string{"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_IPC_LOCK", "CAP_SETUID",
		"CAP_SETGID", "CAP_SETPCAP"} {
		for _, s := range profile(c).Syscalls {
			if !slices.ContainsFunc(base.Syscalls, func(o specs.LinuxSyscall) bool { return reflect.DeepEqual(o, s) }) {
				with[c] = append(with[c], s)
			}
		}
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"base": base, "with": with})
}
