package netif

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// ExplainBPF explains an error of bpf(2) for an XDP program on the interface. what names the object to be created.
func (i *Interface) ExplainBPF(what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("interface %s: %s: %w: it takes CAP_BPF and CAP_NET_ADMIN, a seccomp filter that lets bpf(2) pass "+
			"(a container's may not), before Linux 5.11 an unlimited RLIMIT_MEMLOCK (ulimit -l), and an XDP program cannot be loaded in a user namespace (run as root; afpacket needs CAP_NET_RAW only): %w", i.Name, what, nic.ErrRights, err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("interface %s: %s: %w: another program was attached meanwhile and stays: %w", i.Name, what,
			nic.ErrBusy, err)
	}
	return fmt.Errorf("interface %s: %s: %w", i.Name, what, err)
}
