package netif

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// ExplainBPF explains an error of bpf(2) for an XDP program on the interface. what names the object to be created.
func (i *Interface) ExplainBPF(what string, err error) error {
	// Which error the kernel returns without CAP_PERFMON depends on what the verifier comes upon first.
	lacks := missingForBPF()
	switch {
	case lacks != "":
		return fmt.Errorf("interface %s: %s: %w: the process lacks %s (run as root; afpacket needs CAP_NET_RAW only): %w", i.Name, what, nic.ErrRights, lacks, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("interface %s: %s: %w: it needs a seccomp filter that allows bpf(2) (a container's may not), before Linux 5.11 an "+
			"unlimited RLIMIT_MEMLOCK (ulimit -l), and no user namespace (run as root of the host; afpacket needs CAP_NET_RAW only): %w",
			i.Name, what, nic.ErrRights, err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("interface %s: %s: %w: another program was attached meanwhile and stays: %w", i.Name, what,
			nic.ErrBusy, err)
	}
	return fmt.Errorf("interface %s: %s: %w", i.Name, what, err)
}

// missingForBPF names the capabilities that an XDP program takes and the calling thread lacks, "" for none.
func missingForBPF() string {
	var set [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &set[0]); err != nil {
		return ""
	}
	has := func(c int) bool { return set[c/32].Effective>>(c%32)&1 != 0 }
	var lacks []string
	if !has(unix.CAP_NET_ADMIN) {
		lacks = append(lacks, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_SYS_ADMIN) { // which stands for both
		if !has(unix.CAP_BPF) {
			lacks = append(lacks, "CAP_BPF")
		}
		if !has(unix.CAP_PERFMON) {
			lacks = append(lacks, "CAP_PERFMON")
		}
	}
	return strings.Join(lacks, ", ")
}
