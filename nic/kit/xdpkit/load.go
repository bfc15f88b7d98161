package xdpkit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
)

// identity is struct identity of rules.h, in6 its namesake.
type (
	identity struct{ Own4, Own6 uint32 }
	in6      struct{ Hi, Lo uint64 }
)

// Identity returns the values of us, own4 and own6 of rules.h. Addresses are as fastpath.Rules has them.
func Identity(own4 []uint32, own6 [][2]uint64) (us, four, six any) {
	var a [fastpath.MaxAddresses]uint32
	var b [fastpath.MaxAddresses]in6
	n4, n6 := copy(a[:], own4), min(len(own6), len(b))
	for i := range n6 {
		b[i] = in6{own6[i][0], own6[i][1]}
	}
	return identity{uint32(n4), uint32(n6)}, a, b
}

// MAC returns the value of our_mac of rules.h.
func MAC(mac [6]byte) uint64 { return binary.LittleEndian.Uint64(append(mac[:], 0, 0)) }

// Program is a loaded program.
type Program struct {
	*ebpf.Program
	mac *ebpf.Variable
}

// SetMAC changes the MAC for which the program answers. It makes no system call.
func (p *Program) SetMAC(mac [6]byte) error {
	if err := p.mac.Set(MAC(mac)); err != nil {
		return fmt.Errorf("change the XDP program's MAC: %w", err)
	}
	return nil
}

// Set sets the program's constants, and the first values of its variables, by their names in C.
func Set(spec *ebpf.CollectionSpec, constants map[string]any) error {
	for name, v := range constants {
		c, ok := spec.Variables[name]
		if !ok {
			return fmt.Errorf("the XDP program has no constant %s", name)
		}
		if err := c.Set(v); err != nil {
			return fmt.Errorf("constant %s of the XDP program: %w", name, err)
		}
	}
	return nil
}

// Bind binds p to one interface, so that it may request metadata of a frame from the interface's driver. Kernel
// functions, unlike helpers, are only available to programs with a GPL-compatible licence.
func Bind(p *ebpf.ProgramSpec, ifindex int) {
	p.License = "Dual MIT/GPL"
	p.Flags |= unix.BPF_F_XDP_DEV_BOUND_ONLY
	p.Ifindex = uint32(ifindex)
}

// Omit replaces p's calls of a kernel function by an error. Not all kernels have the function, and looking it up
// takes the kernel's types.
func Omit(p *ebpf.ProgramSpec, function string) {
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.IsKfuncCall() && ins.Reference() == function {
			*ins = asm.Mov.Imm(asm.R0, -int32(unix.EOPNOTSUPP))
		}
	}
}

// Load loads the program of that name, with its maps replaced by those of the same name in replace. Its error is the
// verifier's or the kernel's own.
func (t *Types) Load(spec *ebpf.CollectionSpec, name string, replace map[string]*ebpf.Map) (*Program, error) {
	if spec.Programs[name] == nil {
		return nil, fmt.Errorf("the object has no XDP program %s", name)
	}
	maps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: &t.cache})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return &Program{c.DetachProgram(name), c.Variables["our_mac"]}, nil
}

// Types are the kernel's types and functions (BTF). They are read once, when first needed, which takes some tens of
// milliseconds and some megabytes.
type Types struct{ cache btf.Cache }

// Known reports whether the kernel has a function that programs may call.
func (t *Types) Known(function string) bool {
	spec, err := t.cache.Kernel()
	if err != nil {
		return false
	}
	var fn *btf.Func
	return spec.TypeByName(function, &fn) == nil
}

// refusedForGood reports whether no other hook would take the program either.
func refusedForGood(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)
}

// LiftMemlock removes the limit of locked memory, against which Linux before 5.11 counts programs and maps. Where this
// process may not, bpf(2) returns EPERM later.
func LiftMemlock() {
	unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}
