package vfiouser

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
)

// trap is a BAR that is accessed by messages.
type trap struct {
	f   *Function
	bar int
}

func (t trap) ReadBAR(off uint64, p []byte) error  { return t.f.read(uint32(t.bar), off, p) }
func (t trap) WriteBAR(off uint64, p []byte) error { return t.f.write(uint32(t.bar), off, p) }

// BAR returns the registers. Every access is a message, except through pointers to doorbells, which are in memory
// shared with the server.
func (f *Function) BAR(n int) (*mmio.Window, error) {
	if n < 0 || n > 5 {
		return nil, fmt.Errorf("%s: there is no BAR %d", f.Name(), n)
	}
	f.winMu.Lock()
	defer f.winMu.Unlock()
	if f.win[n] != nil {
		return f.win[n], nil
	}
	info, _, fds, err := f.regionInfo(uint32(n))
	bus.CloseFiles(fds)
	if err != nil {
		return nil, err
	}
	if info.Size == 0 || info.Size > 1<<40 {
		return nil, fmt.Errorf("%s: BAR %d has %#x bytes", f.Name(), n, info.Size)
	}
	var areas []proto.SparseArea
	if f.shadow[n], areas, err = f.mapShadow(n, info.Size); err != nil {
		return nil, err
	}
	mem := f.shadow[n]
	if mem != nil {
		mem = mem[:info.Size]
	}
	f.win[n] = mmio.Trapped(info.Size, trap{f, n}, mem, func(off, size uint64) bool {
		return slices.ContainsFunc(areas, func(a proto.SparseArea) bool {
			return off >= a.Offset && off-a.Offset < a.Size && size <= a.Size-(off-a.Offset)
		})
	})
	return f.win[n], nil
}

func (f *Function) BARWC(n int) (*mmio.Window, error) { return f.BAR(n) }

// mapShadow maps the memory behind a BAR's doorbells, if the server has any, and returns where the doorbells are in it.
func (f *Function) mapShadow(bar int, size uint64) ([]byte, []proto.SparseArea, error) {
	region := uint32(proto.RegionShadow + bar)
	if f.info.Regions <= region {
		return nil, nil, nil
	}
	info, caps, fds, err := f.regionInfo(region)
	defer bus.CloseFiles(fds)
	if err != nil || info.Flags&(proto.RegionMmap|proto.RegionCaps) != proto.RegionMmap|proto.RegionCaps ||
		len(fds) != 1 {
		return nil, nil, err
	}
	ours, areas, err := parseCaps(caps)
	if err != nil || !ours {
		return nil, nil, err
	}
	var st unix.Stat_t
	seals, serr := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
	if err := unix.Fstat(fds[0], &st); err != nil || serr != nil || seals&unix.F_SEAL_SHRINK == 0 ||
		info.Size < size || info.Size > uint64(st.Size) {
		return nil, nil, fmt.Errorf("%w: memory behind BAR %d: %#x bytes of %#x, seals %#x", proto.ErrProtocol, bar,
			info.Size, st.Size, seals)
	}
	mem, err := unix.Mmap(fds[0], 0, int(info.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: map the doorbells of BAR %d: %w", f.Name(), bar, err)
	}
	return mem, areas, nil
}

// regionInfo requests a region's description, and once more with room for its capabilities.
func (f *Function) regionInfo(index uint32) (proto.RegionInfoBody, []byte, []int, error) {
	q := proto.RegionInfoBody{Argsz: 32, Index: index}
	for range 2 {
		r, err := f.conn.Call(proto.CmdGetRegionInfo, proto.Encode(q))
		if err != nil {
			return q, nil, nil, err
		}
		var a proto.RegionInfoBody
		rest, err := proto.Decode(r.Body, &a)
		switch {
		case err != nil || a.Index != index || a.Argsz > proto.MaxTransfer:
			r.CloseFDs()
			return a, nil, nil, fmt.Errorf("%w: region %d: %+v", proto.ErrProtocol, index, a)
		case a.Argsz <= q.Argsz || a.Flags&proto.RegionCaps == 0:
			return a, rest, r.FDs, nil
		}
		r.CloseFDs()
		q.Argsz = a.Argsz
	}
	return q, nil, nil, fmt.Errorf("%w: region %d asks for more room each time", proto.ErrProtocol, index)
}

// parseCaps reads a region's capability chain: whether it is doorbell memory as our server offers it, and where the
// doorbells are. Offsets are relative to the start of the region info.
func parseCaps(caps []byte) (ours bool, areas []proto.SparseArea, err error) {
	bad := fmt.Errorf("%w: capability chain %.64x", proto.ErrProtocol, caps)
	for at, seen := uint32(32), 0; at != 0; seen++ {
		if at < 32 || uint64(at) > uint64(len(caps))+32 || seen > 16 {
			return false, nil, bad
		}
		var h proto.CapHeader
		rest := caps[at-32:]
		if _, err := proto.Decode(rest, &h); err != nil {
			return false, nil, bad
		}
		switch h.ID {
		case proto.CapType:
			var t proto.TypeCap
			if _, err := proto.Decode(rest, &t); err != nil {
				return false, nil, bad
			}
			ours = t.Type == proto.ShadowType && t.Subtype == proto.ShadowSubtype
		case proto.CapSparseMmap:
			var s proto.SparseCap
			if rest, err = proto.Decode(rest, &s); err != nil || uint64(s.Areas)*16 > uint64(len(rest)) {
				return false, nil, bad
			}
			for range s.Areas {
				var a proto.SparseArea
				if rest, err = proto.Decode(rest, &a); err != nil {
					return false, nil, bad
				}
				areas = append(areas, a)
			}
		}
		at = h.Next
	}
	return ours, areas, nil
}
