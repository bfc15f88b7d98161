// Package vfiouser is a vfio-user client: it makes a PCI function in another process, such as a device model behind
// sim/vfioserver, usable as a pci.Function. Package proto has the protocol itself.
package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
)

// Function is a PCI function behind a vfio-user socket.
type Function struct {
	path string
	conn *proto.Conn
	id   pci.ID
	info proto.InfoBody
	ran  chan struct{} // closed when the reader has ended

	winMu  sync.Mutex
	win    [6]*mmio.Window
	shadow [6][]byte

	mu   sync.Mutex // never held while waiting for the server: the reader locks it too
	maps []mapping
}

type mapping struct {
	iova uint64
	mem  []byte
}

var le = binary.LittleEndian

var _ pci.Function = (*Function)(nil)

// Configuration space, PCI Express Base 6.0 §7.5.1.
const (
	offID        = 0x00
	offCommand   = 0x04
	offRevision  = 0x08
	offSubsystem = 0x2c

	cmdMemory    = 1 << 1
	cmdBusMaster = 1 << 2
)

// Dial connects to the server at path, negotiates a version, and enables memory space, as the kernel's vfio-pci does.
// Bus mastering is off.
func Dial(path string) (*Function, error) {
	sock, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("vfio-user: %w", err)
	}
	f := &Function{path: path, ran: make(chan struct{})}
	if f.conn, err = proto.NewConn(sock, f.request); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	f.run()
	if err := f.start(); err != nil {
		f.conn.Fail(proto.ErrClosed)
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}

// run answers the device's requests until the connection is closed.
func (f *Function) run() {
	go func() {
		defer close(f.ran)
		f.conn.Run()
	}()
}

func (f *Function) start() error {
	r, err := f.conn.Call(proto.CmdVersion, proto.VersionBody())
	if errors.Is(err, proto.ErrClosed) {
		return fmt.Errorf("%w (a server that already has a client closes further connections)", err)
	} else if err != nil {
		return err
	}
	r.CloseFDs()
	if _, err := proto.ParseVersion(r.Body); err != nil {
		return err
	}
	r, err = f.conn.Call(proto.CmdGetInfo, proto.Encode(proto.InfoBody{Argsz: 16}))
	if err != nil {
		return err
	}
	r.CloseFDs()
	if _, err := proto.Decode(r.Body, &f.info); err != nil {
		return err
	}
	if f.info.Flags&proto.InfoPCI == 0 || f.info.Regions <= proto.RegionConfig {
		return fmt.Errorf("%w: not a PCI function: flags %#x, %d regions", proto.ErrProtocol, f.info.Flags,
			f.info.Regions)
	}
	var words [3]uint32
	for i, off := range []int{offID, offRevision, offSubsystem} {
		var b [4]byte
		if err := f.ReadConfig(off, b[:]); err != nil {
			return err
		}
		words[i] = le.Uint32(b[:])
	}
	f.id = pci.ID{Vendor: uint16(words[0]), Device: uint16(words[0] >> 16), Revision: uint8(words[1]),
		Class:     words[1] >> 8,
		SubVendor: uint16(words[2]), SubDevice: uint16(words[2] >> 16)}
	return f.command(cmdBusMaster, cmdMemory)
}

func (f *Function) Name() string    { return "vfio-user:" + f.path }
func (f *Function) ID() pci.ID      { return f.id }
func (f *Function) Simulated() bool { return true }

// Transactions returns the PCIe transactions that the model has counted since it was created, by kind. Other servers
// than ours count none.
func (f *Function) Transactions() (map[string]int64, error) {
	if f.info.Regions <= proto.RegionCounts {
		return nil, nil
	}
	var c proto.Counts
	b := make([]byte, binary.Size(c))
	if err := f.read(proto.RegionCounts, 0, b); err != nil {
		return nil, err
	}
	if _, err := proto.Decode(b, &c); err != nil {
		return nil, err
	}
	return map[string]int64{"mmio read": int64(c.MMIORead), "mmio write": int64(c.MMIOWrite),
		"dma read":  int64(c.DMARead),
		"dma write": int64(c.DMAWrite)}, nil
}

// request serves the device's DMA to memory without a file descriptor.
func (f *Function) request(m proto.Message) error {
	m.CloseFDs()
	var q proto.DMABody
	data, err := proto.Decode(m.Body, &q)
	if m.Cmd != proto.CmdDMARead && m.Cmd != proto.CmdDMAWrite {
		return f.conn.Reply(m, nil, syscall.ENOTSUP)
	}
	if err != nil || q.Count > proto.MaxTransfer || m.Cmd == proto.CmdDMAWrite && q.Count != uint64(len(data)) {
		return f.conn.Reply(m, nil, syscall.EINVAL)
	}
	f.mu.Lock()
	mem := f.reach(q)
	var body []byte
	switch {
	case mem == nil:
		err = syscall.EFAULT
	case m.Cmd == proto.CmdDMARead:
		body = proto.Encode(q, mem)
	default:
		copy(mem, data)
		body = proto.Encode(q)
	}
	f.mu.Unlock()
	return f.conn.Reply(m, body, err)
}

// reach returns the memory of a DMA access, or nil if it is not within one mapping.
func (f *Function) reach(q proto.DMABody) []byte {
	for _, m := range f.maps {
		if off := q.Addr - m.iova; q.Addr >= m.iova && off < uint64(len(m.mem)) && q.Count <= uint64(len(m.mem))-off {
			return m.mem[off : off+q.Count]
		}
	}
	return nil
}

func (f *Function) read(region uint32, off uint64, p []byte) error {
	q := proto.AccessBody{Offset: off, Region: region, Count: uint32(len(p))}
	r, err := f.conn.Call(proto.CmdRegionRead, proto.Encode(q))
	if err != nil {
		return err
	}
	r.CloseFDs()
	var a proto.AccessBody
	data, err := proto.Decode(r.Body, &a)
	if err != nil || len(data) != len(p) {
		return fmt.Errorf("%w: REGION_READ of %d bytes returned %d", proto.ErrProtocol, len(p), len(data))
	}
	copy(p, data)
	return nil
}

func (f *Function) write(region uint32, off uint64, p []byte) error {
	r, err := f.conn.Call(proto.CmdRegionWrite, proto.Encode(
		proto.AccessBody{Offset: off, Region: region, Count: uint32(len(p))}, p))
	r.CloseFDs()
	return err
}

func (f *Function) ReadConfig(off int, p []byte) error {
	return f.read(proto.RegionConfig, uint64(off), p)
}

func (f *Function) WriteConfig(off int, p []byte) error {
	return f.write(proto.RegionConfig, uint64(off), p)
}

// command clears and sets bits of the Command register.
func (f *Function) command(off, on uint16) error {
	var b [2]byte
	if err := f.ReadConfig(offCommand, b[:]); err != nil {
		return err
	}
	le.PutUint16(b[:], le.Uint16(b[:])&^off|on)
	return f.WriteConfig(offCommand, b[:])
}

func (f *Function) SetBusMaster(on bool) error {
	if on {
		return f.command(0, cmdBusMaster)
	}
	return f.command(cmdBusMaster, 0)
}

// Reset does a function-level reset. Afterwards memory space is enabled and bus mastering is off.
func (f *Function) Reset() error {
	r, err := f.conn.Call(proto.CmdReset, nil)
	r.CloseFDs()
	if err != nil {
		return err
	}
	return f.command(cmdBusMaster, cmdMemory)
}

// Map maps whole pages for the device at a random address, through the file behind them, or by messages if there is
// none.
func (f *Function) Map(m dma.Memory) (uint64, error) {
	size := uint64(len(m.Bytes))
	if size == 0 || size%4096 != 0 || uintptr(unsafe.Pointer(&m.Bytes[0]))%4096 != 0 || m.Off < 0 {
		return 0, fmt.Errorf("%s: cannot map %d bytes: not whole pages", f.Name(), size)
	}
	iova, err := f.reserve(m.Bytes)
	if err != nil {
		return 0, err
	}
	q := proto.DMAMapBody{Argsz: 32, Flags: proto.MapForRead | proto.MapForWrite, Addr: iova, Size: size}
	var fds []int
	if m.FD >= 0 {
		q.Offset, fds = uint64(m.Off), []int{m.FD}
	} else {
		f.conn.Alert()
	}
	r, err := f.conn.Call(proto.CmdDMAMap, proto.Encode(q), fds...)
	r.CloseFDs()
	if err != nil {
		f.forget(iova)
		return 0, fmt.Errorf("%s: map %#x bytes: %w", f.Name(), size, err)
	}
	return iova, nil
}

// reserve chooses an address for mem above 4 GiB and below 2^47, as sim.Port does for drivers in its own process.
func (f *Function) reserve(mem []byte) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range 1000 {
		iova := (rand.Uint64N(1<<47-1<<33) + 1<<32) &^ (1<<21 - 1)
		if !slices.ContainsFunc(f.maps, func(m mapping) bool {
			return iova < m.iova+uint64(len(m.mem)) && m.iova < iova+uint64(len(mem))
		}) {
			f.maps = append(f.maps, mapping{iova, mem})
			return iova, nil
		}
	}
	return 0, fmt.Errorf("%s: no address is free for %#x bytes", f.Name(), len(mem))
}

func (f *Function) forget(iova uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.maps)
	f.maps = slices.DeleteFunc(f.maps, func(m mapping) bool { return m.iova == iova })
	return len(f.maps) < n
}

// Unmap undoes Map. A lost server cannot access the memory either.
func (f *Function) Unmap(iova uint64, size int) error {
	if !f.forget(iova) {
		return fmt.Errorf("%s: nothing is mapped at %#x", f.Name(), iova)
	}
	q := proto.DMAUnmapBody{Argsz: 24, Addr: iova, Size: uint64(size)}
	r, err := f.conn.Call(proto.CmdDMAUnmap, proto.Encode(q))
	r.CloseFDs()
	if errors.Is(err, proto.ErrClosed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: unmap %#x+%#x: %w", f.Name(), iova, size, err)
	}
	var a proto.DMAUnmapBody
	if _, err := proto.Decode(r.Body, &a); err != nil || a.Size != uint64(size) {
		return fmt.Errorf("%s: unmap of %#x+%#x: only %#x bytes were mapped", f.Name(), iova, size, a.Size)
	}
	return nil
}

// Close turns bus mastering off and disconnects; the server drops the mappings. Windows read all ones afterwards;
// pointers into them must not be used any more.
func (f *Function) Close() error {
	err := f.SetBusMaster(false)
	if errors.Is(err, proto.ErrClosed) {
		err = nil
	}
	f.conn.Fail(proto.ErrClosed)
	<-f.ran
	f.winMu.Lock()
	defer f.winMu.Unlock()
	for i := range f.win {
		if f.win[i] != nil {
			f.win[i].Retire()
		}
		if f.shadow[i] != nil {
			unix.Munmap(f.shadow[i])
			f.shadow[i] = nil
		}
	}
	return err
}
