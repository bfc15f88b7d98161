package vfiouser

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
)

// KindInherited is the Kind of a pci.Bequest that Inherit takes.
const KindInherited = "vfio-user"

// errResting means that another process still uses the connection.
var errResting = errors.New("another process has the function")

var _ pci.Heritable = (*Function)(nil)

// inherited describes the files of a pci.Bequest: the connection, then the memory of each BAR that has any.
type inherited struct {
	Path string
	ID   pci.ID
	Info proto.InfoBody
	BARs []inheritedBAR
}

type inheritedBAR struct {
	N      int
	Size   uint64
	Shadow int                // bytes of memory behind its doorbells, 0 for none
	Areas  []proto.SparseArea // the doorbells
}

// Bequest implements pci.Heritable.
func (f *Function) Bequest() (b pci.Bequest, err error) {
	f.winMu.Lock()
	defer f.winMu.Unlock()
	s := inherited{Path: f.path, ID: f.id, Info: f.info}
	fd, err := f.conn.FD()
	b = pci.Bequest{Kind: KindInherited, Files: []int{fd}}
	for n, win := range f.win {
		if win == nil {
			continue
		}
		k := &f.shadow[n]
		s.BARs = append(s.BARs, inheritedBAR{N: n, Size: win.Size(), Shadow: len(k.mem), Areas: k.areas})
		if k.mem != nil {
			b.Files = append(b.Files, k.fd)
		}
	}
	if err == nil {
		b.State, err = json.Marshal(s)
	}
	return b, err
}

// Inherit continues with the connection of another process. It owns the files.
func Inherit(b pci.Bequest) (_ *Function, err error) {
	files := b.Files
	defer func() { bus.CloseFiles(files) }()
	var s inherited
	if err := json.Unmarshal(b.State, &s); err != nil {
		return nil, fmt.Errorf("vfio-user: inherited function: %w", err)
	}
	if b.Kind != KindInherited || len(files) < 1 {
		return nil, fmt.Errorf("vfio-user: inherited function of kind %q with %d files", b.Kind, len(files))
	}
	file := os.NewFile(uintptr(files[0]), s.Path)
	files = files[1:]
	c, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("vfio-user: inherited connection: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("vfio-user: inherited connection is of network %s", c.LocalAddr().Network())
	}
	f := &Function{path: s.Path, id: s.ID, info: s.Info, conn: proto.NewConn(sock), ran: make(chan struct{})}
	f.resting.Store(true)
	for _, k := range s.BARs {
		var memory shadow
		if k.Shadow > 0 && len(files) > 0 {
			memory, err = mapShadowFile(files[0], uint64(k.Shadow), k.Areas)
			files = files[1:]
		}
		if err != nil || k.N < 0 || k.N > 5 || k.Shadow != 0 && uint64(k.Shadow) < k.Size || len(memory.mem) != k.Shadow {
			memory.close()
			return nil, errors.Join(fmt.Errorf("vfio-user: inherited BAR %d of %#x bytes: %w", k.N, k.Size, errors.Join(err, proto.ErrProtocol)), f.Leave())
		}
		f.shadow[k.N] = memory
		f.win[k.N] = f.window(k.N, k.Size)
	}
	return f, nil
}

// Arrive implements pci.Heritable.
func (f *Function) Arrive() {
	if f.resting.Swap(false) {
		f.run()
	}
}

// Leave implements pci.Heritable.
func (f *Function) Leave() error {
	f.conn.Fail(proto.ErrClosed)
	if !f.resting.Load() {
		<-f.ran
	}
	f.retire()
	return nil
}

// Adopt implements dma.Adopter.
func (f *Function) Adopt(m dma.Memory, iova uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maps = append(f.maps, mapping{iova, m.Bytes})
	return nil
}

// Disown implements dma.Adopter.
func (f *Function) Disown(iova uint64, size int) { f.forget(iova) }
