package vfiouser

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

	"rebound/nic/sim"
)

// Server shows one port to one client at a time.
type Server struct {
	port *sim.Port
	sock *net.UnixListener
	log  *slog.Logger

	mu     sync.Mutex
	conns  map[*conn]bool
	closed bool
	wait   sync.WaitGroup
}

// Listen makes the socket at path, which another server may have left behind, and serves p on it until Close. A client
// that connects while another is served is let in when that one leaves soon, and sent away otherwise.
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
	s := &Server{port: p, sock: sock, log: log, conns: map[*conn]bool{}}
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
		c.fail(ErrClosed)
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
			time.Sleep(100 * time.Millisecond) // out of file descriptors: it may pass
			continue
		}
		c := newConn(sock)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			sock.Close()
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

// session serves one client until it leaves, and then leaves the function as the kernel leaves one whose process died.
func (s *Server) session(c *conn) {
	err := s.port.Acquire()
	for end := time.Now().Add(timeout / 5); err != nil && time.Now().Before(end); err = s.port.Acquire() {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		s.log.Warn("vfio-user: a second client was sent away", "function", s.port.Name())
		c.fail(ErrClosed)
		return
	}
	x := &session{conn: c, port: s.port, memory: memory{}, queue: make(chan message, maxQueue)}
	x.irqs.init(s.port.Config().MSIXVectors)
	s.port.SetInterrupt(x.irqs.raise)
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.serve()
	}()
	err = c.run(func(m message) error {
		select {
		case x.queue <- m:
			return nil
		default: // to wait would also hold up replies that the device waits for
			m.closeFDs()
			return fmt.Errorf("%w: %d requests that nobody waits for", ErrProtocol, maxQueue)
		}
	})
	close(x.queue)
	<-done
	n := s.port.Mappings()
	s.port.Drop()
	x.irqs.close()
	s.log.Debug("vfio-user: client left", "function", s.port.Name(), "mappings", n, "reason", err)
	if errors.Is(err, ErrProtocol) {
		s.log.Error("vfio-user: client sent away", "function", s.port.Name(), "error", err)
	}
}

// maxQueue is how many requests a client may send without waiting; QEMU maps all of memory in one go.
const maxQueue = 1 << 16

// session is one client's.
type session struct {
	conn   *conn
	port   *sim.Port
	memory memory
	irqs   irqs
	queue  chan message
	caps   capabilities
	hello  bool // VERSION was agreed upon
}

func (x *session) serve() {
	for m := range x.queue {
		body, fds, err := x.handle(&m)
		m.closeFDs()
		if errors.Is(err, ErrProtocol) {
			x.conn.reply(m, nil, err)
			x.conn.fail(err)
			break
		}
		if x.conn.reply(m, body, err, fds...) != nil {
			break
		}
	}
	for m := range x.queue {
		m.closeFDs()
	}
}

func (x *session) handle(m *message) (body []byte, fds []int, err error) {
	if m.cmd == cmdVersion != !x.hello {
		return nil, nil, fmt.Errorf("%w: %v where VERSION belongs, or VERSION again", ErrProtocol, m.cmd)
	}
	switch m.cmd {
	case cmdVersion:
		if x.caps, err = parseVersion(m.body); err != nil {
			return nil, nil, err
		}
		x.hello = true
		return versionBody(), nil, nil
	case cmdDMAMap:
		return nil, nil, x.dmaMap(m)
	case cmdDMAUnmap:
		body, err = x.dmaUnmap(m)
	case cmdGetInfo:
		return encode(infoBody{16, infoReset | infoPCI, numRegions, numIRQs}), nil, nil
	case cmdGetRegionInfo:
		return x.regionInfo(m)
	case cmdGetIRQInfo:
		var q irqInfoBody
		if _, err = decode(m.body, &q); err == nil {
			q.Argsz, q.Flags, q.Count = 16, x.irqs.flags(q.Index), x.irqs.count(q.Index)
			body = encode(q)
		}
	case cmdSetIRQs:
		err = x.irqs.set(m)
	case cmdRegionRead:
		body, err = x.regionRead(m)
	case cmdRegionWrite:
		body, err = x.regionWrite(m)
	case cmdWriteMulti:
		body, err = x.writeMulti(m)
	case cmdReset:
		x.port.Reset()
	default:
		err = fmt.Errorf("vfio-user: %v: %w", m.cmd, syscall.ENOTSUP)
	}
	return body, nil, err
}

func (x *session) dmaMap(m *message) error {
	var q dmaMapBody
	if _, err := decode(m.body, &q); err != nil {
		return err
	}
	if q.Flags&^(dmaRead|dmaWrite) != 0 || len(m.fds) > 1 {
		return syscall.EINVAL
	}
	if x.port.Mappings() >= maxMaps {
		return syscall.ENOSPC
	}
	to := sim.Mapping{Size: q.Size, Read: q.Flags&dmaRead != 0, Write: q.Flags&dmaWrite != 0}
	if len(m.fds) == 0 {
		to.Remote = x
		return x.port.Map(q.Addr, to)
	}
	var err error
	if to.Bytes, to.Release, err = x.memory.acquire(m.fds[0], q.Offset, q.Size, to.Write); err != nil {
		return err
	}
	if err = x.port.Map(q.Addr, to); err != nil {
		to.Release()
	}
	return err
}

func (x *session) dmaUnmap(m *message) ([]byte, error) {
	var q dmaUnmapBody
	if _, err := decode(m.body, &q); err != nil {
		return nil, err
	}
	switch {
	case q.Flags == unmapAll && q.Addr == 0 && q.Size == 0:
		x.port.UnmapAll()
		return encode(q), nil
	case q.Flags != 0:
		return nil, syscall.ENOTSUP
	}
	var err error
	q.Size, err = x.port.Unmap(q.Addr, q.Size)
	return encode(q), err
}

// ReadDMA asks the client for memory that it did not share. The port's lock is held; the reader goroutine brings the reply.
func (x *session) ReadDMA(iova uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), x.caps.MaxDataXfer, maxTransfer)
		q := dmaBody{iova, uint64(n)}
		r, err := x.conn.call(cmdDMARead, encode(q))
		if err != nil {
			return err
		}
		r.closeFDs()
		var a dmaBody
		data, err := decode(r.body, &a)
		if err != nil || a != q || len(data) != n {
			err = fmt.Errorf("%w: reply to DMA_READ of %d bytes at %#x: %d at %#x", ErrProtocol, n, iova, a.Count, a.Addr)
			x.conn.fail(err)
			return err
		}
		copy(p, data)
		iova, p = iova+uint64(n), p[n:]
	}
	return nil
}

// WriteDMA is ReadDMA's counterpart.
func (x *session) WriteDMA(iova uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), x.caps.MaxDataXfer, maxTransfer)
		r, err := x.conn.call(cmdDMAWrite, encode(dmaBody{iova, uint64(n)}, p[:n]))
		if err != nil {
			return err
		}
		r.closeFDs()
		iova, p = iova+uint64(n), p[n:]
	}
	return nil
}

// regionInfo describes a region; the reply is as long as the client says it can take, with argsz saying what it would need.
func (x *session) regionInfo(m *message) ([]byte, []int, error) {
	var q regionInfoBody
	if _, err := decode(m.body, &q); err != nil {
		return nil, nil, err
	}
	room := q.Argsz
	r := regionInfoBody{Argsz: 32, Index: q.Index}
	conf := x.port.Config()
	switch {
	case q.Index < 6:
		if r.Size = conf.BARs[q.Index].Size; r.Size > 0 {
			r.Flags = regionRead | regionWrite
		}
	case q.Index == regionConfig:
		r.Size, r.Flags = configSize, regionRead|regionWrite
	case q.Index == countsRegion:
		r.Size, r.Flags = uint64(binary.Size(sim.Counts{})), regionRead
	case q.Index == regionROM, q.Index == regionVGA:
	case q.Index < countsRegion:
		bar := int(q.Index - shadowRegion)
		fd := x.port.ShadowFD(bar)
		if fd < 0 {
			break
		}
		polled := conf.BARs[bar].Polled
		caps := encode(typeCap{capHeader{capType, 1, 32 + 16}, shadowType, shadowSubtype},
			sparseCap{capHeader: capHeader{capSparseMmap, 1, 0}, Areas: uint32(len(polled))})
		for _, p := range polled {
			caps = append(caps, encode(sparseArea{p.Off, p.Len})...)
		}
		r.Size, r.Flags = (conf.BARs[bar].Size+0xfff)&^0xfff, regionRead|regionWrite|regionMmap|regionCaps
		r.Argsz += uint32(len(caps))
		if room < r.Argsz {
			return encode(r), nil, nil
		}
		r.CapOffset = 32
		return encode(r, caps), []int{fd}, nil
	default:
		return nil, nil, syscall.EINVAL
	}
	return encode(r), nil, nil
}

func (x *session) regionRead(m *message) ([]byte, error) {
	var q accessBody
	if _, err := decode(m.body, &q); err != nil {
		return nil, err
	}
	if q.Count > maxTransfer {
		return nil, syscall.E2BIG
	}
	if q.Region == countsRegion {
		counts := encode(x.port.Counts())
		if q.Offset != 0 || int(q.Count) != len(counts) {
			return nil, syscall.EINVAL
		}
		return encode(q, counts), nil
	}
	data := make([]byte, q.Count)
	err := x.pieces(q, data, x.port.ReadConfig, x.port.ReadBAR)
	return encode(q, data), err
}

func (x *session) regionWrite(m *message) ([]byte, error) {
	var q accessBody
	data, err := decode(m.body, &q)
	if err != nil {
		return nil, err
	}
	if uint64(q.Count) != uint64(len(data)) {
		return nil, fmt.Errorf("%w: REGION_WRITE of %d bytes has %d", ErrProtocol, q.Count, len(data))
	}
	return encode(q), x.pieces(q, data, x.port.WriteConfig, x.port.WriteBAR)
}

// writeMulti makes writes of up to 8 bytes each, in order, and replies with how many there were.
func (x *session) writeMulti(m *message) ([]byte, error) {
	var n uint64
	rest, err := decode(m.body, &n)
	if err != nil || n*24 != uint64(len(rest)) || n > maxTransfer {
		return nil, fmt.Errorf("%w: REGION_WRITE_MULTI of %d writes in %d bytes", ErrProtocol, n, len(m.body))
	}
	for range n {
		var w writeOne
		if rest, err = decode(rest, &w); err != nil {
			return nil, err
		}
		if w.Count > 8 {
			return nil, syscall.EINVAL
		}
		if err := x.pieces(w.accessBody, w.Data[:w.Count], x.port.WriteConfig, x.port.WriteBAR); err != nil {
			return nil, err
		}
	}
	return encode(n), nil
}

// pieces makes an access of any length in naturally aligned ones, as a bridge does.
func (x *session) pieces(q accessBody, p []byte, config func(int, []byte) error,
	bar func(int, uint64, []byte) error) error {
	size, widest := uint64(configSize), uint64(4)
	switch {
	case q.Region < 6:
		size, widest = x.port.Config().BARs[q.Region].Size, 8
	case q.Region != regionConfig:
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
		if q.Region == regionConfig {
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
