package confine

import (
	"errors"
	"fmt"
	"slices"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// System calls of a responder, by caller. A name that an architecture does not have is omitted there.
var (
	// The loops of the socket drivers kick the kernel. Kernels from 5.11 on cache that the filter always allows these,
	// and do not run it.
	loops = []string{"sendto", "recvfrom", "sendmsg", "recvmsg", "poll", "ppoll"}

	// Go's runtime: memory, threads, signals, waiting.
	rt = []string{"futex", "nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "epoll_create1",
		"epoll_ctl", "epoll_wait",
		"epoll_pwait", "eventfd2", "pipe2", "read", "write", "readv", "writev", "close", "munmap", "madvise", "mremap",
		"mincore", "brk", "sigaltstack",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "restart_syscall", "gettid", "getpid",
		"getppid", "getuid", "geteuid",
		"getgid", "getegid", "sched_yield", "sched_getaffinity", "sched_setaffinity", "exit", "exit_group", "getrandom",
		"uname", "sysinfo",
		"set_robust_list", "rseq", "membarrier", "getcpu", "wait4", "waitid", "timer_create", "timer_settime",
		"timer_delete", "setitimer"}

	// Files, within what Landlock allows.
	reading = []string{"lseek", "pread64", "preadv", "fstat", "newfstatat", "statx", "getdents64", "readlinkat",
		"faccessat", "faccessat2", "access",
		"fcntl", "fadvise64", "getcwd", "fstatfs", "statfs"}
	writing = []string{"pwrite64", "pwritev", "mkdirat", "unlinkat", "renameat", "renameat2", "fchmod", "fchmodat",
		"fsync", "fdatasync", "ftruncate",
		"fallocate", "rename", "mkdir", "unlink", "rmdir"}

	// Sockets that are open: the metrics page, the kernel's messages about the interface, the drivers' own.
	sockets = []string{"accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown", "bind"}

	// Drivers on the device itself: its registers, memory that it reads, its restart.
	devices = []string{"ioctl", "memfd_create", "ftruncate", "fallocate", "mlock", "mlock2", "munlock", "mincore",
		"mbind", "get_mempolicy", "pwrite64"}

	// The clock's state, for STAMP's error estimate; setting it takes a capability.
	clocks = []string{"adjtimex", "clock_adjtime", "clock_getres"}
)

// Commands of bpf(2) that use loaded objects.
var bpfCommands = []uint64{
	unix.BPF_MAP_LOOKUP_ELEM, unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_MAP_GET_NEXT_KEY,
	unix.BPF_MAP_LOOKUP_BATCH,
	unix.BPF_OBJ_GET_INFO_BY_FD, unix.BPF_LINK_DETACH, unix.BPF_PROG_GET_NEXT_ID, unix.BPF_LINK_UPDATE,
}

// policy returns the system calls that are allowed. Names that this architecture lacks are left out; some calls have
// conditions on their arguments.
func (n *Needs) policy() (*seccomp.Policy, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	all := slices.Concat(loops, rt, reading, sockets, devices, clocks, withCgo)
	if len(n.Write) > 0 {
		all = append(all, writing...)
	}
	if n.Priority {
		all = append(all, "sched_setattr", "sched_setscheduler", "sched_getattr")
	}
	var allowed []string
	for _, name := range all {
		if _, ok := info.SyscallNames[name]; ok && !slices.Contains(allowed, name) {
			allowed = append(allowed, name)
		}
	}
	group := seccomp.SyscallGroup{Action: seccomp.ActionAllow, Names: allowed,
		NamesWithCondtions: []seccomp.NameWithConditions{
			// A thread, but no process.
			{Name: "clone", Conditions: when(seccomp.BitsSet, 0, unix.CLONE_THREAD)},
			// Memory cannot be made executable.
			{Name: "mmap", Conditions: when(seccomp.BitsNotSet, 2, unix.PROT_EXEC)},
			{Name: "mprotect", Conditions: when(seccomp.BitsNotSet, 2, unix.PROT_EXEC)},
			// Names of memory regions, set by Go's runtime.
			{Name: "prctl", Conditions: when(seccomp.Equal, 0, unix.PR_SET_VMA)},
			// Signals to threads of this process, by which Go interrupts them.
			{Name: "tgkill", Conditions: when(seccomp.Equal, 0, uint64(unix.Getpid()))},
			// Queries about interfaces: rtnetlink, and the socket for ethtool's ioctls. No packet socket, no AF_XDP.
			{Name: "socket", Conditions: when(seccomp.Equal, 0, unix.AF_NETLINK)},
			{Name: "socket", Conditions: append(when(seccomp.Equal, 0, unix.AF_INET), when(seccomp.Equal, 1, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC)...)},
		}}
	forbidden := uint64(unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC)
	if len(n.Devices) > 0 {
		forbidden &^= unix.O_RDWR
	}
	if len(n.Write) > 0 {
		group.Names = append(group.Names, "openat")
	} else {
		group.NamesWithCondtions = append(group.NamesWithCondtions,
			seccomp.NameWithConditions{Name: "openat", Conditions: when(seccomp.BitsNotSet, 2, forbidden)})
	}
	if n.BPF {
		for _, c := range bpfCommands {
			group.NamesWithCondtions = append(group.NamesWithCondtions,
				seccomp.NameWithConditions{Name: "bpf", Conditions: when(seccomp.Equal, 0, c)})
		}
	}
	return &seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{group}}, nil
}

func when(operation seccomp.Operation, argument uint32, value uint64) seccomp.ArgumentConditions {
	return seccomp.ArgumentConditions{{Argument: argument, Operation: operation, Value: value}}
}

// filterFlags are the flags for loading the filter, best first: EINVAL means that the kernel does not know one.
//
// SPEC_ALLOW, from Linux 4.17 on, leaves speculative store bypass enabled. Before Linux 5.16, and later with
// spec_store_bypass_disable=seccomp on the kernel's command line, a filter without it disables that for the thread, and
// a polling loop takes 1.5 times as long (docs/internals/performance.md). The mitigation protects this process's memory
// from foreign code that runs inside the process, and there is none.
//
// TSYNC applies the filter to all threads. If that fails for one, the kernel returns its thread ID, which the library
// mistakes for success; with TSYNC_ESRCH, from Linux 5.7 on, it is an error.
var filterFlags = []seccomp.FilterFlag{
	seccomp.FilterFlagTSync | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
	seccomp.FilterFlagTSync | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
	seccomp.FilterFlagTSync,
}

// calls allows the system calls that the process needs; all others fail with EPERM.
func (n *Needs) calls() Hold {
	p, err := n.policy()
	switch {
	case err != nil:
		return Hold{"seccomp", "", err}
	case !seccomp.Supported():
		return Hold{"seccomp", "", errNone}
	}
	f := seccomp.Filter{NoNewPrivs: true, Policy: *p}
	for _, f.Flag = range filterFlags {
		if err = seccomp.LoadFilter(f); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return Hold{"seccomp", n.describeCalls(), err}
}

func (n *Needs) describeCalls() string {
	p, err := n.policy()
	if err != nil {
		return ""
	}
	g := p.Syscalls[0]
	return fmt.Sprintf("%d system calls, %d more with some arguments; all others fail", len(g.Names),
		len(g.NamesWithCondtions))
}
