package vfioserver_test

import (
	"bytes"
	"encoding/binary"
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
	"github.com/rebound-nic/rebound/proof/needs"
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
		raw(1, proto.CmdDMAMap, 0, proto.DMAMapBody{Argsz: 32, Flags: 3, Addr: 1 << 32, Size: 4096}),
		raw(2, proto.CmdGetInfo, 0, proto.InfoBody{Argsz: 16}),
		raw(3, proto.CmdGetRegionInfo, 0, proto.RegionInfoBody{Argsz: 4096, Index: proto.RegionShadow + 2}),
		raw(4, proto.CmdGetIRQInfo, 0, proto.IRQInfoBody{Argsz: 16, Index: 2}),
		raw(5, proto.CmdSetIRQs, 0, proto.SetIRQsBody{Argsz: 20, Flags: 0x24, Index: 2, Count: 1}),
		raw(6, proto.CmdRegionRead, 0, proto.AccessBody{Region: 7, Count: 256}),
		raw(7, proto.CmdRegionWrite, 0, proto.AccessBody{Offset: 4, Region: 7, Count: 2}, uint16(6)),
		raw(8, proto.CmdRegionWrite, proto.FlagNoReply, proto.AccessBody{Offset: 0x28, Count: 4}, uint32(2)),
		raw(9, proto.CmdWriteMulti, 0, uint64(1), proto.WriteOne{AccessBody: proto.AccessBody{Offset: 4, Count: 4},
			Data: [8]byte{1}}), raw(10, proto.CmdReset, 0),
		raw(11, proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Addr: 1 << 32, Size: 4096}),
		raw(12, proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Flags: proto.UnmapAll}),
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

// served returns a model's port on a server, and the connection of a client that has sent its version.
func served(t *testing.T, m sim.Model) (*sim.Port, *net.UnixConn) {
	t.Helper()
	p := must.Get(sim.New(m, sim.Options{Name: "toy"}))(t)
	path := filepath.Join(t.TempDir(), "nic")
	s := must.Get(vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)))(t)
	sock := must.Get(net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}))(t)
	t.Cleanup(func() { sock.Close(); s.Close(); p.Close() })
	sock.SetDeadline(time.Now().Add(5 * time.Minute))
	call(t, sock, -1, raw(0, proto.CmdVersion, 0, proto.VersionBody()))
	return p, sock
}

// call sends messages, with a file descriptor unless fd is negative, and reads a reply to each. It returns the body of
// the last.
func call(t *testing.T, sock *net.UnixConn, fd int, messages ...[]byte) (body []byte) {
	t.Helper()
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, _, err := sock.WriteMsgUnix(bytes.Join(messages, nil), oob, nil); err != nil {
		t.Fatal(err)
	}
	for range messages {
		head := make([]byte, proto.HeaderSize)
		must.Get(io.ReadFull(sock, head))(t)
		body = make([]byte, binary.LittleEndian.Uint32(head[4:])-proto.HeaderSize)
		must.Get(io.ReadFull(sock, body))(t)
		if head[8]&0x20 != 0 {
			t.Fatalf("an error is the reply: %x", head)
		}
	}
	return body
}

// A vector is signalled by the kind of interrupt that the client enabled: MSI-X, the MSI message, or INTx, which is
// silent until it is unmasked.
func TestInterruptKinds(t *testing.T) {
	m := &interrupter{Model: toysim.New([6]byte{2})}
	p, sock := served(t, m)
	var info proto.IRQInfoBody
	must.Get(proto.Decode(call(t, sock, -1, raw(1, proto.CmdGetIRQInfo, 0,
		proto.IRQInfoBody{Argsz: 16, Index: proto.IRQMSI})), &info))(t)
	if info.Count != 1 || info.Flags != proto.IRQEventFD|proto.IRQNoResize {
		t.Errorf("MSI: %+v", info)
	}
	set := func(fd int, body proto.SetIRQsBody) {
		t.Helper()
		body.Argsz = 20
		call(t, sock, fd, raw(2, proto.CmdSetIRQs, 0, body))
	}
	for _, c := range []struct {
		name         string
		index, start uint32
		again        int // interrupts delivered for two raised
	}{{"MSI-X", proto.IRQMSIX, 1, 2}, {"MSI", proto.IRQMSI, 0, 2}, {"INTx", proto.IRQINTx, 0, 1}} {
		fd := must.Get(unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC))(t)
		defer unix.Close(fd)
		taken := func() int {
			var b [8]byte // stays 0 if there was none
			unix.Read(fd, b[:])
			return int(b[0])
		}
		set(fd, proto.SetIRQsBody{Flags: proto.SetTrigger | proto.SetDataEventFD, Index: c.index, Start: c.start,
			Count: 1})
		for range 2 {
			p.Hold(func() { m.host.Interrupt(1) })
		}
		check.Equal(t, taken(), c.again, c.name+": %d interrupts")
		if c.index == proto.IRQINTx {
			set(-1, proto.SetIRQsBody{Flags: proto.SetUnmask | proto.SetDataNone, Index: c.index, Count: 1})
			check.Equal(t, taken(), 1, "INTx, unmasked: %d interrupts")
		}
		set(-1, proto.SetIRQsBody{Flags: proto.SetTrigger | proto.SetDataNone, Index: c.index})
		p.Hold(func() { m.host.Interrupt(1) })
		check.Equal(t, taken(), 0, c.name+", disabled: %d interrupts")
	}
}

// A client may write registers faster than the device handles them, without requesting replies, and is still served.
func TestManyPostedWrites(t *testing.T) {
	p, sock := served(t, toysim.New([6]byte{2}))
	call(t, sock, -1, raw(1, proto.CmdRegionWrite, 0, proto.AccessBody{Offset: 4, Region: proto.RegionConfig, Count: 2},
		uint16(6)))
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
	call(t, sock, -1, raw(3, proto.CmdRegionRead, 0, proto.AccessBody{Offset: 0x28, Count: 4}))
	check.Equal(t, p.Counts().MMIOWrite-before, writes, "%d writes arrived")
}

// With an IOMMU, QEMU sends a map for each 4 KiB of a guest's memory region: 262,144 of them for 1 GiB, more than
// VFIO's limit.
func TestMemoryRegionInPages(t *testing.T) {
	needs.Long(t)
	p, sock := served(t, toysim.New([6]byte{2}))
	const page, pages, batch = 4096, 1<<16 + 64, 64
	mem := must.Get(unix.MemfdCreate("region", unix.MFD_CLOEXEC))(t)
	defer unix.Close(mem)
	unix.Ftruncate(mem, page)
	each := func(fd int, message func(id uint16, addr uint64) []byte) {
		t.Helper()
		for at := 0; at < pages; at += batch {
			var all [][]byte
			for i := at; i < at+batch; i++ {
				all = append(all, message(uint16(i), 1<<32+uint64(i)*page))
			}
			call(t, sock, fd, all...)
			fd = -1 // most maps have no file: the client copies the bytes
		}
	}
	each(mem, func(id uint16, addr uint64) []byte {
		return raw(id, proto.CmdDMAMap, 0, proto.DMAMapBody{Argsz: 32, Flags: 3, Addr: addr, Size: page})
	})
	check.Equal(t, p.Mappings(), pages, "%d mappings")
	each(-1, func(id uint16, addr uint64) []byte {
		return raw(id, proto.CmdDMAUnmap, 0, proto.DMAUnmapBody{Argsz: 24, Addr: addr, Size: page})
	})
	check.Equal(t, p.Mappings(), 0, "%d mappings are left")
}
