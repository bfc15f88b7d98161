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

// BAR returns the registers. Every access is a message, except through pointers to doorbells, which are in memory shared with the
// server.
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
	if f.shadow[n], err = f.mapShadow(n, info.Size); err != nil {
		return nil, err
	}
	f.win[n] = f.window(n, info.Size)
	return f.win[n], nil
}

// window returns BAR n, whose shadow is mapped.
func (f *Function) window(n int, size uint64) *mmio.Window {
	k := &f.shadow[n]
	mem := k.mem
	if mem != nil {
		mem = mem[:size]
	}
	return mmio.Trapped(size, trap{f, n}, mem, func(off, size uint64) bool {
		return slices.ContainsFunc(k.areas, func(a proto.SparseArea) bool {
			return off >= a.Offset && off-a.Offset < a.Size && size <= a.Size-(off-a.Offset)
		})
	})
}

func (f *Function) BARWC(n int) (*mmio.Window, error) { return f.BAR(n) }

// shadow is the memory behind a BAR's doorbells, the zero value if there is none.
type shadow struct {
	mem   []byte
	fd    int
	areas []proto.SparseArea // the doorbells
}

func (k *shadow) close() {
	if k.mem != nil {
		unix.Munmap(k.mem)
		unix.Close(k.fd)
	}
	*k = shadow{}
}

// mapShadow maps the memory behind a BAR's doorbells, if the server has any.
func (f *Function) mapShadow(bar int, size uint64) (shadow, error) {
	region := uint32(proto.RegionShadow + bar)
	if f.info.Regions <= region {
		return shadow{}, nil
	}
	info, caps, fds, err := f.regionInfo(region)
	defer func() { bus.CloseFiles(fds) }()
	if err != nil || info.Flags&(proto.RegionMmap|proto.RegionCaps) != proto.RegionMmap|proto.RegionCaps || len(fds) != 1 {
		return shadow{}, err
	}
	ours, areas, err := parseCaps(caps)
	if err != nil || !ours {
		return shadow{}, err
	}
	if info.Size < size {
		return shadow{}, fmt.Errorf("%w: %#x bytes of memory behind BAR %d of %#x", proto.ErrProtocol, info.Size, bar, size)
	}
	fd := fds[0]
	fds = nil
	k, err := mapShadowFile(fd, info.Size, areas)
	if err != nil {
		return k, fmt.Errorf("%s: memory behind BAR %d: %w", f.Name(), bar, err)
	}
	return k, nil
}

// mapShadowFile maps a file, which it owns.
func mapShadowFile(fd int, size uint64, areas []proto.SparseArea) (k shadow, err error) {
	var st unix.Stat_t
	seals, serr := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err := unix.Fstat(fd, &st); err != nil || serr != nil || seals&unix.F_SEAL_SHRINK == 0 || size > uint64(st.Size) {
		unix.Close(fd)
		return k, fmt.Errorf("%w: %#x bytes of %#x, seals %#x", proto.ErrProtocol, size, st.Size, seals)
	}
	if k.mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		unix.Close(fd)
		return k, err
	}
	k.fd, k.areas = fd, areas
	return k, nil
}

// regionInfo requests a region's description, and once more with room for its capabilities.
func (f *Function) regionInfo(index uint32) (proto.RegionInfoBody, []byte, []int, error) {
	q := proto.RegionInfoBody{Argsz: 32, Index: index}
	for range 2 {
		r, err := f.call(proto.CmdGetRegionInfo, proto.Encode(q))
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

// parseCaps reads a region's capability chain: whether it is doorbell memory as our server offers it, and where the doorbells
// are. Offsets are relative to the start of the region info.
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
