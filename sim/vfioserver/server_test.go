package vfioserver_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

func raw(id uint16, cmd proto.Command, flags uint32, body ...any) []byte {
	b := proto.Encode(body...)
	return proto.Encode(id, uint16(cmd), uint32(proto.HeaderSize+len(b)), flags, uint32(0), b)
}

// FuzzServer sends arbitrary bytes as a client, with or without a file descriptor attached to the first byte. The
// server must answer or reject it, release everything afterwards, and serve the next client.
func FuzzServer(f *testing.F) {
	hello := raw(0, proto.CmdVersion, 0, proto.VersionBody())
	all := append([]byte(nil), hello...)
	for i, m := range [][]byte{
		raw(1, proto.CmdDMAMap, 0, proto.DMAMapBody{Argsz: 32, Flags: 3, Addr: 1 << 32, Size: 4096}), raw(2, proto.CmdGetInfo, 0, proto.InfoBody{Argsz: 16}),
		raw(3, proto.CmdGetRegionInfo, 0, proto.RegionInfoBody{Argsz: 4096, Index: proto.RegionShadow + 2}),
		raw(4, proto.CmdGetIRQInfo, 0, proto.IRQInfoBody{Argsz: 16, Index: 2}), raw(5, proto.CmdSetIRQs, 0, proto.SetIRQsBody{Argsz: 20, Flags: 0x24, Index: 2, Count: 1}),
		raw(6, proto.CmdRegionRead, 0, proto.AccessBody{Region: 7, Count: 256}), raw(7, proto.CmdRegionWrite, 0, proto.AccessBody{Offset: 4, Region: 7, Count: 2}, uint16(6)),
		raw(8, proto.CmdRegionWrite, proto.FlagNoReply, proto.AccessBody{Offset: 0x28, Count: 4}, uint32(2)),
		raw(9, proto.CmdWriteMulti, 0, uint64(1), proto.WriteOne{AccessBody: proto.AccessBody{Offset: 4, Count: 4}, Data: [8]byte{1}}), raw(10, proto.CmdReset, 0),
		raw(11, proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Addr: 1 << 32, Size: 4096}), raw(12, proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Flags: proto.UnmapAll}),
		raw(13, proto.CmdDMARead, proto.FlagReply, proto.DMABody{Count: 4}, uint32(0)), raw(14, 77, 0),
	} {
		f.Add(append(append([]byte(nil), hello...), m...), i%2 == 0)
		if i < 12 {
			all = append(all, m...)
		}
	}
	f.Add(all, true)
	f.Add([]byte{0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, false)
	p := must.Get(sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy", Seed: 1}))(f)
	path := filepath.Join(f.TempDir(), "nic")
	s := must.Get(vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)))(f)
	f.Cleanup(func() { s.Close(); p.Close() })
	f.Fuzz(func(t *testing.T, data []byte, fd bool) {
		sock := must.Get(net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}))(t)
		var oob []byte
		if fd {
			mem := must.Get(unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC))(t)
			defer unix.Close(mem)
			unix.Ftruncate(mem, 8192)
			oob = unix.UnixRights(mem)
		}
		sock.SetDeadline(time.Now().Add(proto.Timeout))
		if n, _, err := sock.WriteMsgUnix(data, oob, nil); err == nil {
			sock.Write(data[n:])
		}
		sock.CloseWrite() // before the device acts, so that its requests to this client are refused at once
		done, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				p.Step()
				select {
				case <-done:
					return
				case <-time.After(200 * time.Microsecond): // lets the server run
				}
			}
		}()
		for buf := make([]byte, 1<<16); ; {
			if _, err := sock.Read(buf); err != nil {
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Fatal("the server neither answers nor hangs up")
				}
				break
			}
		}
		close(done)
		<-ended
		sock.Close()
		next(t, p)
		defer p.Drop()
		if n := p.Mappings(); n > 0 || p.BusMaster() {
			t.Errorf("%d mappings and bus mastering %v from the client before", n, p.BusMaster())
		}
	})
}

// next reserves the port as the server does for the next client. Connecting a real client would take as long again as
// the fuzz input.
func next(t *testing.T, p *sim.Port) {
	for end := time.Now().Add(proto.Timeout); p.Acquire() != nil; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the server keeps the port from the next client")
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nic")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	p := must.Get(sim.New(toysim.New([6]byte{2}), sim.Options{}))(t)
	defer p.Close()
	log := slog.New(slog.DiscardHandler)
	s := must.Get(vfioserver.Listen(path, p, log))(t)
	check.Fails(t, "a socket that is in use was replaced", check.Err(vfioserver.Listen(path, p, log)), nil)
	s.Close()
	check.Fails(t, "the socket is still there", check.Err(os.Stat(path)), os.ErrNotExist)
}

// interrupter is a toy device whose interrupts a test raises.
type interrupter struct {
	*toysim.Model
	host sim.Host
}

func (m *interrupter) Attach(h sim.Host) { m.host = h; m.Model.Attach(h) }
func (m *interrupter) Config() sim.Config {
	c := m.Model.Config()
	c.MSI = true
	return c
}

// served returns a model's port on a server, and the connection of a client.
func served(t *testing.T, m sim.Model) (*sim.Port, *net.UnixConn) {
	t.Helper()
	p := must.Get(sim.New(m, sim.Options{Name: "toy"}))(t)
	t.Cleanup(func() { p.Close() })
	path := filepath.Join(t.TempDir(), "nic")
	s := must.Get(vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { s.Close() })
	sock := must.Get(net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}))(t)
	t.Cleanup(func() { sock.Close() })
	sock.SetDeadline(time.Now().Add(5 * time.Minute))
	return p, sock
}

// A vector is signalled by the kind of interrupt that the client enabled: MSI-X, the MSI message, or INTx, which is
// silent until it is unmasked.
func TestInterruptKinds(t *testing.T) {
	m := &interrupter{Model: toysim.New([6]byte{2})}
	p, sock := served(t, m)
	id := uint16(0)
	call := func(cmd proto.Command, fd int, body ...any) []byte {
		t.Helper()
		id++
		var oob []byte
		if fd >= 0 {
			oob = unix.UnixRights(fd)
		}
		if _, _, err := sock.WriteMsgUnix(raw(id, cmd, 0, body...), oob, nil); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<16)
		n, err := sock.Read(b)
		if err != nil || n < proto.HeaderSize || b[8]&0x20 != 0 {
			t.Fatalf("%v: %x, %v", cmd, b[:n], err)
		}
		return b[proto.HeaderSize:n]
	}
	call(proto.CmdVersion, -1, proto.VersionBody())
	var info proto.IRQInfoBody
	if _, err := proto.Decode(call(proto.CmdGetIRQInfo, -1, proto.IRQInfoBody{Argsz: 16, Index: proto.IRQMSI}), &info); err != nil || info.Count != 1 ||
		info.Flags != proto.IRQEventFD|proto.IRQNoResize {
		t.Errorf("MSI: %+v, %v", info, err)
	}
	for _, c := range []struct {
		name          string
		index         uint32
		vector, again int // interrupts delivered for two raised
	}{{"MSI-X", proto.IRQMSIX, 1, 2}, {"MSI", proto.IRQMSI, 1, 2}, {"INTx", proto.IRQINTx, 1, 1}} {
		fd := must.Get(unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC))(t)
		defer unix.Close(fd)
		taken := func() int {
			var b [8]byte
			if n, err := unix.Read(fd, b[:]); n != 8 || err != nil {
				return 0
			}
			return int(b[0])
		}
		start := uint32(0)
		if c.index == proto.IRQMSIX {
			start = uint32(c.vector)
		}
		call(proto.CmdSetIRQs, fd, proto.SetIRQsBody{Argsz: 20, Flags: proto.SetTrigger | proto.SetDataEventFD, Index: c.index, Start: start, Count: 1})
		for range 2 {
			p.Hold(func() { m.host.Interrupt(c.vector) })
		}
		if n := taken(); n != c.again {
			t.Errorf("%s: %d interrupts of vector %d, want %d", c.name, n, c.vector, c.again)
		}
		if c.index == proto.IRQINTx {
			call(proto.CmdSetIRQs, -1, proto.SetIRQsBody{Argsz: 20, Flags: proto.SetUnmask | proto.SetDataNone, Index: c.index, Count: 1})
			check.Equal(t, taken(), 1, "INTx, unmasked: %d interrupts")
		}
		call(proto.CmdSetIRQs, -1, proto.SetIRQsBody{Argsz: 20, Flags: proto.SetTrigger | proto.SetDataNone, Index: c.index})
		p.Hold(func() { m.host.Interrupt(c.vector) })
		if n := taken(); n != 0 {
			t.Errorf("%s, disabled: %d interrupts", c.name, n)
		}
	}
}

// A client may write registers faster than the device handles them, without requesting replies, and is still served.
func TestManyPostedWrites(t *testing.T) {
	p, sock := served(t, toysim.New([6]byte{2}))
	reply := make([]byte, 1<<16)
	call := func(b []byte) {
		t.Helper()
		must.Get(sock.Write(b))(t)
		if n, err := sock.Read(reply); err != nil || n < proto.HeaderSize || reply[8]&0x20 != 0 {
			t.Fatalf("%x, %v", reply[:n], err)
		}
	}
	call(raw(0, proto.CmdVersion, 0, proto.VersionBody()))
	call(raw(1, proto.CmdRegionWrite, 0, proto.AccessBody{Offset: 4, Region: proto.RegionConfig, Count: 2}, uint16(6)))
	const writes = 100_000
	before := p.Counts().MMIOWrite
	one := raw(2, proto.CmdRegionWrite, proto.FlagNoReply, proto.AccessBody{Offset: 0x28, Count: 4}, uint32(2))
	rest, free, busy, held := bytes.Repeat(one, writes), make(chan struct{}), make(chan struct{}), true
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	go p.Hold(func() { // the device is busy until the socket is full
		close(busy)
		<-free
	})
	<-busy // a device that is not held yet could handle them all
	for len(rest) > 0 {
		wait := 2 * time.Minute
		if held {
			wait = 3 * time.Second
		}
		sock.SetWriteDeadline(time.Now().Add(wait))
		n, err := sock.Write(rest[:min(len(rest), 1<<16)])
		rest = rest[n:]
		switch {
		case err == nil:
		case held && errors.Is(err, os.ErrDeadlineExceeded):
			release()
			held = false
		default:
			t.Fatalf("%d bytes before the end: %v", len(rest), err)
		}
	}
	if held {
		t.Error("the socket takes everything: nothing holds the client back")
		release()
	}
	call(raw(3, proto.CmdRegionRead, 0, proto.AccessBody{Offset: 0x28, Count: 4}))
	if n := p.Counts().MMIOWrite - before; n != writes {
		t.Errorf("%d of %d writes arrived", n, writes)
	}
}

// With an IOMMU, QEMU sends a map for each 4 KiB of a guest's memory region: 262,144 of them for 1 GiB, more than
// VFIO's limit.
func TestMemoryRegionInPages(t *testing.T) {
	p, sock := served(t, toysim.New([6]byte{2}))
	const page, pages, batch = 4096, 1<<16 + 64, 64
	mem := must.Get(unix.MemfdCreate("region", unix.MFD_CLOEXEC))(t)
	defer unix.Close(mem)
	unix.Ftruncate(mem, page)
	reply := make([]byte, 1<<16)
	call := func(fd bool, b []byte, count, size int) {
		t.Helper()
		var oob []byte
		if fd {
			oob = unix.UnixRights(mem)
		}
		if _, _, err := sock.WriteMsgUnix(b, oob, nil); err != nil {
			t.Fatal(err)
		}
		for range count {
			if _, err := io.ReadFull(sock, reply[:size]); err != nil || reply[8]&0x20 != 0 {
				t.Fatalf("%x, %v", reply[:size], err)
			}
		}
	}
	hello := proto.Encode(proto.VersionBody())
	call(false, raw(0, proto.CmdVersion, 0, proto.VersionBody()), 1, proto.HeaderSize+len(hello))
	for at := 0; at < pages; at += batch { // most maps have no file: the client copies the bytes
		var all []byte
		for i := at; i < at+batch; i++ {
			all = append(all, raw(uint16(i), proto.CmdDMAMap, 0, proto.DMAMapBody{Argsz: 32, Flags: 3, Addr: 1<<32 + uint64(i)*page, Size: page})...)
		}
		call(at == 0, all, batch, proto.HeaderSize)
	}
	check.Equal(t, p.Mappings(), pages, "%d mappings")
	for at := 0; at < pages; at += batch {
		var all []byte
		for i := at; i < at+batch; i++ {
			all = append(all, raw(uint16(i), proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Addr: 1<<32 + uint64(i)*page, Size: page})...)
		}
		call(false, all, batch, proto.HeaderSize+24)
	}
	check.Equal(t, p.Mappings(), 0, "%d mappings are left")
}
