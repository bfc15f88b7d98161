// Package confine drops what this process no longer needs: capabilities, new privileges, files (Landlock), and system
// calls (seccomp). No present or future thread of the process can get it back.
package confine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Needs describes what a process keeps, in addition to what every Go program needs to run and to exit.
type Needs struct {
	Read  []string // files and folders that may be read, with everything below them; missing ones are left out
	Write []string // that may also be written, and in which files may be created and removed

	// Folders of device files, which may be opened and used, but not created or removed.
	Devices []string

	// Capabilities to keep, if the process has them.
	Capabilities []Capability

	AnyCall  bool // no filter of system calls
	BPF      bool // loaded objects may be read and written; nothing may be loaded
	Priority bool // real-time priorities
}

// Capability is a Linux capability (capabilities(7)).
type Capability uint

// Those that a responder may have.
const (
	DACOverride = Capability(unix.CAP_DAC_OVERRIDE) // files whose mode forbids it: the folders of control groups
	IPCLock     = Capability(unix.CAP_IPC_LOCK)
	SysNice     = Capability(unix.CAP_SYS_NICE)
	NetRaw      = Capability(unix.CAP_NET_RAW) // send queues and rules of a card that the kernel drives
	BPF         = Capability(unix.CAP_BPF)
	SysAdmin    = Capability(unix.CAP_SYS_ADMIN) // a PCI function's "enable" in sysfs, physical addresses in pagemap
)

var names = map[Capability]string{DACOverride: "CAP_DAC_OVERRIDE", IPCLock: "CAP_IPC_LOCK", SysNice: "CAP_SYS_NICE",
	NetRaw: "CAP_NET_RAW", BPF: "CAP_BPF", SysAdmin: "CAP_SYS_ADMIN"}

func (c Capability) String() string {
	if n := names[c]; n != "" {
		return n
	}
	return fmt.Sprintf("capability %d", uint(c))
}

// Hold is one restriction of the process, or an attempt at one.
type Hold struct {
	Name string // "user", "capabilities", "no_new_privs", "landlock", "seccomp"
	What string // the restriction; empty if Err is set
	Err  error  // why it does not
}

func (h Hold) String() string {
	if h.Err != nil {
		return fmt.Sprintf("%s: not in force: %v", h.Name, h.Err)
	}
	return h.Name + ": " + h.What
}

// errNone means that the kernel lacks a mechanism.
var errNone = errors.New("this kernel has none, or it is not enabled")

// Apply confines the process permanently, as far as the kernel supports it. Each step is tried, whatever the result of
// the others. Call it before any thread is bound to a loop, because it must reach all of them.
func Apply(n Needs) []Hold {
	kept, err := n.capabilities()
	holds := []Hold{{"no_new_privs", "no program that is started gets more rights",
		everyThread(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)}}
	holds = append(holds, n.files())
	bounding := ""
	if err == nil {
		bounding, err = setCapabilities(kept)
	}
	holds = append(holds, Hold{"capabilities", describe(kept) + bounding, err})
	if n.AnyCall {
		return holds
	}
	return append(holds, n.calls())
}

// Available reports what Apply could use on this kernel, without applying it.
func Available(n Needs) []Hold {
	kept, err := n.capabilities()
	holds := []Hold{{"no_new_privs", "no program that is started gets more rights", nil}}
	abi, lerr := ll.LandlockGetABIVersion()
	if lerr != nil || abi < 1 {
		lerr = errNone
	}
	holds = append(holds, Hold{"landlock", n.describeFiles(abi), lerr}, Hold{"capabilities", describe(kept), err})
	if n.AnyCall {
		return holds
	}
	var serr error
	if !seccomp.Supported() {
		serr = errNone
	}
	return append(holds, Hold{"seccomp", n.describeCalls(), serr})
}

// everyThread makes a system call on all threads of the process.
func everyThread(call uintptr, arguments ...uintptr) error {
	var a [6]uintptr
	copy(a[:], arguments)
	if _, _, e := psx.Syscall6(call, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// sets are the capability sets of a thread.
type sets [2]unix.CapUserData

func (s *sets) has(c Capability) bool { return s[c/32].Effective&(1<<(c%32)) != 0 }

// effective returns the sets of the calling thread.
func effective() (*sets, error) {
	s := new(sets)
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &s[0]); err != nil {
		return nil, fmt.Errorf("capget: %w", err)
	}
	return s, nil
}

// capabilities returns the effective capabilities that the process keeps.
func (n *Needs) capabilities() (kept []Capability, err error) {
	all, err := effective()
	if err != nil {
		return nil, err
	}
	for _, c := range n.Capabilities {
		if all.has(c) && !slices.Contains(kept, c) {
			kept = append(kept, c)
		}
	}
	// If its memory is locked, now and in the future, a process without this capability cannot grow above the limit,
	// and would crash.
	if all.has(IPCLock) && !unlimited() {
		kept = append(kept, IPCLock)
	}
	return kept, nil
}

// unlimited reports whether the limit on locked memory is lifted, and tries to lift it.
func unlimited() bool {
	infinite := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &infinite) == nil {
		return true
	}
	var l unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur == unix.RLIM_INFINITY
}

// setCapabilities drops all capabilities but kept from every thread. remark is set if the bounding set still contains
// more.
func setCapabilities(kept []Capability) (remark string, err error) {
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := new(sets)
	for _, c := range kept {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	left, err := dropBounding(kept)
	if err != nil {
		return "", err
	}
	if left > 0 {
		remark = fmt.Sprintf("; the bounding set keeps %d more, which no_new_privs makes unusable (the process has no CAP_SETPCAP)", left)
	}
	// A capability leaves the ambient set with the inheritable one.
	if err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data))); err != nil {
		return "", fmt.Errorf("capset: %w", err)
	}
	return remark, nil
}

// dropBounding removes all capabilities but kept from the bounding set, so that no program that is started can get
// more, whatever its file grants. It needs CAP_SETPCAP; without it, left is the number of others that the set keeps.
func dropBounding(kept []Capability) (left int, err error) {
	for c := Capability(0); ; c++ {
		there, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil { // beyond the kernel's last capability
			return left, nil
		}
		if there == 0 || slices.Contains(kept, c) {
			continue
		}
		if err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c)); errors.Is(err, unix.EPERM) {
			left++
		} else if err != nil {
			return 0, fmt.Errorf("%v: PR_CAPBSET_DROP: %w", c, err)
		}
	}
}

func describe(kept []Capability) string {
	if len(kept) == 0 {
		return "none"
	}
	list := make([]string, len(kept))
	for i, c := range kept {
		list[i] = c.String()
	}
	return strings.Join(list, ", ")
}

// files restricts which files can be opened, forbids outgoing TCP connections, and allows incoming ones only on
// existing listeners.
func (n *Needs) files() Hold {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil || abi < 1 {
		return Hold{"landlock", "", errNone}
	}
	var rules []landlock.Rule
	for _, name := range n.Read {
		if folder, there := kind(name); folder {
			rules = append(rules, landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSReadDir, name))
		} else if there {
			rules = append(rules, landlock.PathAccess(ll.AccessFSReadFile, name))
		}
	}
	for _, name := range n.Write {
		if folder, there := kind(name); folder {
			rules = append(rules, landlock.RWDirs(name).WithRefer().WithIoctlDev())
		} else if there {
			rules = append(rules, landlock.RWFiles(name).WithIoctlDev())
		}
	}
	for _, name := range n.Devices {
		if folder, _ := kind(name); folder {
			rules = append(rules, landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSWriteFile, name).WithIoctlDev())
		}
	}
	err = landlock.V5.BestEffort().Restrict(rules...)
	return Hold{"landlock", n.describeFiles(abi), err}
}

// kind reports whether the name exists, and whether it is a folder.
func kind(name string) (folder, there bool) {
	info, err := os.Stat(name)
	return err == nil && info.IsDir(), err == nil
}

func (n *Needs) describeFiles(abi int) string {
	list := func(names []string) string {
		if len(names) == 0 {
			return "nothing"
		}
		return strings.Join(names, " ")
	}
	what := fmt.Sprintf("version %d; read: %s; write: %s", abi, list(n.Read), list(n.Write))
	if len(n.Devices) > 0 {
		what += "; devices: " + list(n.Devices)
	}
	return what
}
