package xdp

import (
	"fmt"

	"github.com/cilium/ebpf"

	"rebound/fastpath"
)

// maxChecksum is the longest packet whose checksum the program can verify: MAX_FRAME of responder.c, less its header.
const maxChecksum = 4096 - 22

// load loads the program for c, its time in nanoseconds.
func load(c fastpath.Config) (*programObjects, error) {
	if c.STAMPBase {
		return nil, fmt.Errorf("%w: driver xdp has no base packets for short test packets (STAMPBase)", fastpath.ErrConfig)
	}
	c.TicksPerSecond = 1e9
	r, err := c.Rules()
	if err != nil {
		return nil, err
	}
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	spec.Maps[programMapCpus].MaxEntries = uint32(cpus)
	set := programRuleSet{
		Mac: c.MAC, ChecksumBytes: uint32(min(r.ChecksumBytes, maxChecksum)), Cost: r.Cost, Burst: r.Burst, Most: r.Most,
		Own4Count: uint32(len(r.Own4)), Not4Count: uint32(len(r.Not4)), Own6Count: uint32(len(r.Own6)),
	}
	if c.Mode == fastpath.Open {
		set.Open = 1
	}
	if c.PartialChecksums {
		set.Partial = 1
	}
	var own4 [fastpath.MaxAddresses]uint32
	copy(own4[:], r.Own4)
	var not4 [3 * fastpath.MaxAddresses]uint32
	copy(not4[:], r.Not4)
	var own6 [fastpath.MaxAddresses]programIn6
	for i, a := range r.Own6 {
		own6[i] = programIn6{Hi: a[0], Lo: a[1]}
	}
	for name, v := range map[string]any{
		programVarRules: set, programVarOwn4: own4, programVarNot4: not4, programVarOwn6: own6, programVarVlans: r.VLANs,
		programVarEchoPorts: r.Echo, programVarStampPorts: r.STAMP, programVarServicePorts: r.Service,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("%s of the program: %w", name, err)
		}
	}
	var p programObjects
	if err := spec.LoadAndAssign(&p, nil); err != nil {
		return nil, fmt.Errorf("XDP program: %w", err)
	}
	return &p, nil
}
