// Package vfioserver serves a device model to other processes over vfio-user: to QEMU (10.1 or later) and to our
// drivers.
package vfioserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/sim"
)

// Server serves one port to one client at a time.
type Server struct {
	port *sim.Port
	sock *net.UnixListener
	log  *slog.Logger

	mu     sync.Mutex
	conns  map[*proto.Conn]bool
	closed bool
	wait   sync.WaitGroup
}

// Listen creates the socket at path, replaces one that another server left behind, and serves p on it until Close. A
// client that connects while another is served waits briefly for it to leave, and is then rejected.
func Listen(path string, p *sim.Port, log *slog.Logger) (*Server, error) {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	sock, err := net.ListenUnix("unix", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		if c, derr := net.DialUnix("unix", nil, addr); derr == nil {
			c.Close()
		} else if st, serr := os.Lstat(path); serr == nil && st.Mode()&os.ModeSocket != 0 {
			os.Remove(path)
			sock, err = net.ListenUnix("unix", addr)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("vfio-user: listen: %w", err)
	}
	s := &Server{port: p, sock: sock, log: log, conns: map[*proto.Conn]bool{}}
	s.wait.Add(1)
	go s.accept()
	return s, nil
}

// Close removes the socket and drops the client.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	err := s.sock.Close()
	for c := range s.conns {
		c.Fail(proto.ErrClosed)
	}
	s.mu.Unlock()
	s.wait.Wait()
	return err
}

func (s *Server) accept() {
	defer s.wait.Done()
	for {
		sock, err := s.sock.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Error("vfio-user: accept", "function", s.port.Name(), "error", err)
			time.Sleep(100 * time.Millisecond) // out of file descriptors, perhaps temporarily
			continue
		}
		c, err := proto.NewConn(sock, nil)
		if err != nil {
			s.log.Error("vfio-user: accept", "function", s.port.Name(), "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Fail(proto.ErrClosed)
			return
		}
		s.conns[c] = true
		s.wait.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.wait.Done()
			s.session(c)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

// session serves one client until it leaves, and then drops the function as the kernel does when a process dies.
func (s *Server) session(c *proto.Conn) {
	err := s.port.Acquire()
	wait := 20 * time.Microsecond // the previous client may be leaving
	for end := time.Now().Add(proto.Timeout / 5); err != nil && time.Now().Before(end); err = s.port.Acquire() {
		time.Sleep(wait)
		wait = min(2*wait, 5*time.Millisecond)
	}
	if err != nil {
		s.log.Warn("vfio-user: a second client was sent away", "function", s.port.Name())
		c.Fail(proto.ErrClosed)
		return
	}
	x := &session{conn: c, port: s.port, memory: memory{}}
	x.irqs.init(s.port.Config())
	s.port.SetInterrupt(x.irqs.raise)
	err = x.serve()
	n := s.port.Mappings()
	s.port.Drop()
	x.irqs.close()
	s.log.Debug("vfio-user: client left", "function", s.port.Name(), "mappings", n, "reason", err)
	if errors.Is(err, proto.ErrProtocol) {
		s.log.Error("vfio-user: client sent away", "function", s.port.Name(), "error", err)
	}
}

// session is the state of one client.
type session struct {
	conn   *proto.Conn
	port   *sim.Port
	memory memory
	irqs   irqs
	caps   proto.Capabilities
	hello  bool // VERSION was negotiated
}

// serve handles one request after another until the connection is closed. While it does, the server does not read the
// socket, unless the device waits for a reply, which is behind later requests: a guest that writes registers faster
// than the model handles them waits.
func (x *session) serve() error {
	for {
		m, err := x.conn.Next()
		if err != nil {
			return err
		}
		body, fds, err := x.handle(&m)
		m.CloseFDs()
		x.conn.Reply(m, body, err, fds...)
		if errors.Is(err, proto.ErrProtocol) {
			x.conn.Fail(err)
		}
	}
}

func (x *session) handle(m *proto.Message) (body []byte, fds []int, err error) {
	if m.Cmd == proto.CmdVersion != !x.hello {
		return nil, nil, fmt.Errorf("%w: %v where VERSION belongs, or VERSION again", proto.ErrProtocol, m.Cmd)
	}
	switch m.Cmd {
	case proto.CmdVersion:
		if x.caps, err = proto.ParseVersion(m.Body); err != nil {
			return nil, nil, err
		}
		x.hello = true
		return proto.VersionBody(), nil, nil
	case proto.CmdDMAMap:
		return nil, nil, x.dmaMap(m)
	case proto.CmdDMAUnmap:
		body, err = x.dmaUnmap(m)
	case proto.CmdGetInfo:
		return proto.Encode(proto.InfoBody{Argsz: 16, Flags: proto.InfoReset | proto.InfoPCI, Regions: proto.NumRegions,
			IRQs: proto.NumIRQs}), nil, nil
	case proto.CmdGetRegionInfo:
		return x.regionInfo(m)
	case proto.CmdGetIRQInfo:
		var q proto.IRQInfoBody
		if _, err = proto.Decode(m.Body, &q); err == nil {
			q.Argsz, q.Flags, q.Count = 16, x.irqs.flags(q.Index), x.irqs.count(q.Index)
			body = proto.Encode(q)
		}
	case proto.CmdSetIRQs:
		err = x.irqs.set(m)
	case proto.CmdRegionRead:
		body, err = x.regionRead(m)
	case proto.CmdRegionWrite:
		body, err = x.regionWrite(m)
	case proto.CmdWriteMulti:
		body, err = x.writeMulti(m)
	case proto.CmdReset:
		x.port.Reset()
	default:
		err = fmt.Errorf("vfio-user: %v: %w", m.Cmd, syscall.ENOTSUP)
	}
	return body, nil, err
}

func (x *session) dmaMap(m *proto.Message) error {
	var q proto.DMAMapBody
	if _, err := proto.Decode(m.Body, &q); err != nil {
		return err
	}
	if q.Flags&^(proto.MapForRead|proto.MapForWrite) != 0 || len(m.FDs) > 1 {
		return syscall.EINVAL
	}
	if x.port.Mappings() >= proto.MaxMaps {
		return syscall.ENOSPC
	}
	to := sim.Mapping{Size: q.Size, Read: q.Flags&proto.MapForRead != 0, Write: q.Flags&proto.MapForWrite != 0}
	if len(m.FDs) == 0 {
		to.Remote = x
		return x.port.Map(q.Addr, to)
	}
	var err error
	if to.Bytes, to.Release, err = x.memory.acquire(m.FDs[0], q.Offset, q.Size, to.Write); err != nil {
		return err
	}
	if err = x.port.Map(q.Addr, to); err != nil {
		to.Release()
	}
	return err
}

func (x *session) dmaUnmap(m *proto.Message) ([]byte, error) {
	var q proto.DMAUnmapBody
	if _, err := proto.Decode(m.Body, &q); err != nil {
		return nil, err
	}
	switch {
	case q.Flags == proto.UnmapAll && q.Addr == 0 && q.Size == 0:
		x.port.UnmapAll()
		return proto.Encode(q), nil
	case q.Flags != 0:
		return nil, syscall.ENOTSUP
	}
	var err error
	q.Size, err = x.port.Unmap(q.Addr, q.Size)
	return proto.Encode(q), err
}

// ReadDMA reads memory that the client did not share, by asking the client for it. The port's lock is held.
func (x *session) ReadDMA(iova uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), x.caps.MaxDataXfer, proto.MaxTransfer)
		q := proto.DMABody{Addr: iova, Count: uint64(n)}
		r, err := x.conn.Call(proto.CmdDMARead, proto.Encode(q))
		if err != nil {
			return err
		}
		r.CloseFDs()
		var a proto.DMABody
		data, err := proto.Decode(r.Body, &a)
		if err != nil || a != q || len(data) != n {
			err = fmt.Errorf("%w: reply to DMA_READ of %d bytes at %#x: %d at %#x", proto.ErrProtocol, n, iova, a.Count,
				a.Addr)
			x.conn.Fail(err)
			return err
		}
		copy(p, data)
		iova, p = iova+uint64(n), p[n:]
	}
	return nil
}

// WriteDMA is ReadDMA for writes.
func (x *session) WriteDMA(iova uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), x.caps.MaxDataXfer, proto.MaxTransfer)
		r, err := x.conn.Call(proto.CmdDMAWrite, proto.Encode(proto.DMABody{Addr: iova, Count: uint64(n)}, p[:n]))
		if err != nil {
			return err
		}
		r.CloseFDs()
		iova, p = iova+uint64(n), p[n:]
	}
	return nil
}

// regionInfo describes a region. The reply is truncated to the size that the client accepts; argsz is the size that it
// needs.
func (x *session) regionInfo(m *proto.Message) ([]byte, []int, error) {
	var q proto.RegionInfoBody
	if _, err := proto.Decode(m.Body, &q); err != nil {
		return nil, nil, err
	}
	room := q.Argsz
	r := proto.RegionInfoBody{Argsz: 32, Index: q.Index}
	conf := x.port.Config()
	switch {
	case q.Index < 6:
		if r.Size = conf.BARs[q.Index].Size; r.Size > 0 {
			r.Flags = proto.RegionRead | proto.RegionWrite
		}
	case q.Index == proto.RegionConfig:
		r.Size, r.Flags = proto.ConfigSize, proto.RegionRead|proto.RegionWrite
	case q.Index == proto.RegionCounts:
		r.Size, r.Flags = uint64(binary.Size(proto.Counts{})), proto.RegionRead
	case q.Index == proto.RegionROM, q.Index == proto.RegionVGA:
	case q.Index < proto.RegionCounts:
		bar := int(q.Index - proto.RegionShadow)
		fd := x.port.ShadowFD(bar)
		if fd < 0 {
			break
		}
		polled := conf.BARs[bar].Polled
		caps := proto.Encode(proto.TypeCap{CapHeader: proto.CapHeader{ID: proto.CapType, Version: 1, Next: 32 + 16},
			Type: proto.ShadowType, Subtype: proto.ShadowSubtype},
			proto.SparseCap{CapHeader: proto.CapHeader{ID: proto.CapSparseMmap, Version: 1},
				Areas: uint32(len(polled))})
		for _, p := range polled {
			caps = append(caps, proto.Encode(proto.SparseArea{Offset: p.Off, Size: p.Len})...)
		}
		r.Size, r.Flags = (conf.BARs[bar].Size+0xfff)&^0xfff,
			proto.RegionRead|proto.RegionWrite|proto.RegionMmap|proto.RegionCaps
		r.Argsz += uint32(len(caps))
		if room < r.Argsz {
			return proto.Encode(r), nil, nil
		}
		r.CapOffset = 32
		return proto.Encode(r, caps), []int{fd}, nil
	default:
		return nil, nil, syscall.EINVAL
	}
	return proto.Encode(r), nil, nil
}

func (x *session) regionRead(m *proto.Message) ([]byte, error) {
	var q proto.AccessBody
	if _, err := proto.Decode(m.Body, &q); err != nil {
		return nil, err
	}
	if q.Count > proto.MaxTransfer {
		return nil, syscall.E2BIG
	}
	if q.Region == proto.RegionCounts {
		counts := proto.Encode(proto.Counts(x.port.Counts()))
		if q.Offset != 0 || int(q.Count) != len(counts) {
			return nil, syscall.EINVAL
		}
		return proto.Encode(q, counts), nil
	}
	data := make([]byte, q.Count)
	err := x.pieces(q, data, x.port.ReadConfig, x.port.ReadBAR)
	return proto.Encode(q, data), err
}

func (x *session) regionWrite(m *proto.Message) ([]byte, error) {
	var q proto.AccessBody
	data, err := proto.Decode(m.Body, &q)
	if err != nil {
		return nil, err
	}
	if uint64(q.Count) != uint64(len(data)) {
		return nil, fmt.Errorf("%w: REGION_WRITE of %d bytes has %d", proto.ErrProtocol, q.Count, len(data))
	}
	return proto.Encode(q), x.pieces(q, data, x.port.WriteConfig, x.port.WriteBAR)
}

// writeMulti executes writes of up to 8 bytes each, in order, and replies with their number.
func (x *session) writeMulti(m *proto.Message) ([]byte, error) {
	var n uint64
	rest, err := proto.Decode(m.Body, &n)
	if err != nil || n*24 != uint64(len(rest)) || n > proto.MaxTransfer {
		return nil, fmt.Errorf("%w: REGION_WRITE_MULTI of %d writes in %d bytes", proto.ErrProtocol, n, len(m.Body))
	}
	for range n {
		var w proto.WriteOne
		if rest, err = proto.Decode(rest, &w); err != nil {
			return nil, err
		}
		if w.Count > 8 {
			return nil, syscall.EINVAL
		}
		if err := x.pieces(w.AccessBody, w.Data[:w.Count], x.port.WriteConfig, x.port.WriteBAR); err != nil {
			return nil, err
		}
	}
	return proto.Encode(n), nil
}

// pieces splits an access of any length into naturally aligned ones, as a bridge does.
func (x *session) pieces(q proto.AccessBody, p []byte, config func(int, []byte) error,
	bar func(int, uint64, []byte) error) error {
	size, widest := uint64(proto.ConfigSize), uint64(4)
	switch {
	case q.Region < 6:
		size, widest = x.port.Config().BARs[q.Region].Size, 8
	case q.Region != proto.RegionConfig:
		return syscall.EINVAL
	}
	if q.Offset > size || uint64(len(p)) > size-q.Offset {
		return syscall.EINVAL
	}
	for off := q.Offset; len(p) > 0; {
		n := widest
		for off%n != 0 || n > uint64(len(p)) {
			n /= 2
		}
		var err error
		if q.Region == proto.RegionConfig {
			err = config(int(off), p[:n])
		} else {
			err = bar(int(q.Region), off, p[:n])
		}
		if err != nil {
			return err
		}
		off, p = off+n, p[n:]
	}
	return nil
}
