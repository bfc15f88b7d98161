package netif

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// ExplainBPF explains an error of bpf(2) for an XDP program on the interface. what names the object to be created.
func (i *Interface) ExplainBPF(what string, err error) error {
	// Which error the kernel returns without CAP_PERFMON depends on what the verifier comes upon first.
	lacks := MissingForXDP()
	err = plainError(err)
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

// plainError returns an error of bpf(2) without the eBPF library's advice, which is about the library, and without its
// wrong guess "not supported" if there are no file descriptors left for its own tests.
func plainError(err error) error {
	fd, e := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case e == unix.EMFILE, e == unix.ENFILE:
		return e
	case e == nil:
		unix.Close(fd)
	}
	if errors.Is(err, unix.EPERM) {
		return unix.EPERM
	}
	return err
}

// MissingForXDP names the capabilities that an XDP program needs and the calling thread lacks, "" for none.
func MissingForXDP() string {
	lacks := []string{Missing(unix.CAP_NET_ADMIN)}
	if Missing(unix.CAP_SYS_ADMIN) != "" { // which stands for both
		lacks = append(lacks, Missing(unix.CAP_BPF), Missing(unix.CAP_PERFMON))
	}
	return strings.Join(slices.DeleteFunc(lacks, func(name string) bool { return name == "" }), ", ")
}

// Missing returns the name of a capability that the calling thread lacks, "" if it has it or that is not known.
func Missing(capability int) string {
	var set [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &set[0]); err != nil {
		return ""
	}
	if set[capability/32].Effective>>(capability%32)&1 != 0 {
		return ""
	}
	return map[int]string{unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
		unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_BPF: "CAP_BPF",
		unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_IPC_LOCK: "CAP_IPC_LOCK"}[capability]
}
