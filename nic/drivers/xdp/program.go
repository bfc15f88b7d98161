package xdp

import (
	"encoding/binary"
	"fmt"
	"os"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// maxChecksum is the longest packet whose checksum the program can verify: MAX_FRAME of state.h, less its header.
const maxChecksum = 9728 - 22

// variant describes what a program needs beyond the rules.
type variant struct {
	frags       bool   // supports frames in several buffers
	tag, stamps bool   // gets the stripped tag, and the receive timestamp, from the interface's driver
	ifindex     int    // interface that a program with tag or stamps is bound to
	still       uint64 // tests: the timestamp in all test packets
	stepped     bool   // tests: the limit uses the time that the test wrote to Now
}

// bound reports whether the program is for a single interface.
func (v variant) bound() bool { return v.tag || v.stamps }

// maps are the program's maps, which outlive it if they are pinned.
type maps struct{ Cpus, Clocks *ebpf.Map }

func (m *maps) close() {
	for _, m := range []*ebpf.Map{m.Cpus, m.Clocks} {
		if m != nil {
			m.Close()
		}
	}
}

// object holds the programs as they are on disk, and what loading them takes.
type object struct {
	spec  *ebpf.CollectionSpec
	types xdpkit.Types
}

// newObject returns the object as this machine needs it.
func newObject() (*object, error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	spec.Maps[programMapCpus].MaxEntries = uint32(cpus)
	return &object{spec: spec}, nil
}

// newMaps makes the maps for a program.
func (o *object) newMaps() (m *maps, err error) {
	m = &maps{}
	if m.Cpus, err = ebpf.NewMap(o.spec.Maps[programMapCpus]); err != nil {
		return nil, err
	}
	if m.Clocks, err = ebpf.NewMap(o.spec.Maps[programMapClocks]); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// load loads the program for c, with the maps m.
func (o *object) load(c fastpath.Config, v variant, m *maps) (*xdpkit.Program, error) {
	c.TicksPerSecond = 1e9
	r, err := c.Rules()
	if err != nil {
		return nil, err
	}
	if c.Loop == 0 {
		r.Loop = 0 // the verifier drops the guard
	}
	spec := o.spec.Copy()
	set := programRuleSet{
		ChecksumBytes: uint32(min(r.ChecksumBytes, maxChecksum)), Cost: r.Cost, Burst: r.Burst, Most: r.Most,
		Idle:      r.Idle,
		Not4Count: uint32(len(r.Not4)), Open: bit(c.Mode == fastpath.Open), Partial: bit(c.PartialChecksums),
		Stamp: bit(len(c.STAMPPorts) > 0), StampBase: bit(c.STAMPBase), Frags: bit(v.frags), Still: v.still,
		Stepped: bit(v.stepped),
		Tag:     bit(v.tag), Stamps: bit(v.stamps), Loop: r.Loop, Window: uint32(r.Window),
	}
	var not4 [3 * fastpath.MaxAddresses]uint32
	copy(not4[:], r.Not4)
	us, own4, own6 := xdpkit.Identity(r.Own4, r.Own6)
	if err := xdpkit.Set(spec, map[string]any{
		programVarOurMac: xdpkit.MAC(c.MAC), programVarUs: us, programVarOwn4: own4, programVarOwn6: own6,
		programVarRules: set, programVarNot4: not4,
		programVarVlans: r.VLANs, programVarEchoPorts: r.Echo, programVarStampPorts: r.STAMP,
		programVarServicePorts: r.Service,
	}); err != nil {
		return nil, err
	}
	name := programProgRebound
	if v.bound() {
		name = programProgReboundBound
	}
	prog := spec.Programs[name]
	if v.frags {
		prog.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	if v.bound() {
		xdpkit.Bind(prog, v.ifindex)
	}
	if !v.tag {
		xdpkit.Omit(prog, "bpf_xdp_metadata_rx_vlan_tag")
	}
	if !v.stamps {
		xdpkit.Omit(prog, "bpf_xdp_metadata_rx_timestamp")
	}
	p, err := o.types.Load(spec, name, map[string]*ebpf.Map{programMapCpus: m.Cpus, programMapClocks: m.Clocks})
	return p, needsTypes(err, "/sys/kernel/btf/vmlinux")
}

// needsTypes explains an error of loading if the kernel's types, in file, are missing: without them it rejects global
// functions that get the context.
func needsTypes(err error, file string) error {
	if err == nil {
		return nil
	}
	if _, missing := os.Stat(file); missing != nil {
		return fmt.Errorf("%w; the program needs the kernel's types (CONFIG_DEBUG_INFO_BTF), and %s is missing", err,
			file)
	}
	return err
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// layout describes the layout of the maps, so that a program does not get those of another version: the names, types
// and offsets of all fields, and their byte order.
func layout() string {
	var describe func(t reflect.Type) string
	describe = func(t reflect.Type) string {
		switch t.Kind() {
		case reflect.Struct:
			s := ""
			for i := range t.NumField() {
				if f := t.Field(i); f.Name != "_" {
					s += fmt.Sprintf("%s@%d:%s ", f.Name, f.Offset, describe(f.Type))
				}
			}
			return "{" + s + "}"
		case reflect.Array:
			return fmt.Sprintf("[%d]%s", t.Len(), describe(t.Elem()))
		}
		return t.String()
	}
	return describe(reflect.TypeFor[programCpuCounts]()) + describe(reflect.TypeFor[programClockPair]()) + fmt.Sprint(
		binary.NativeEndian)
}
