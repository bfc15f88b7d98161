package vfiouser

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

func serveToy(t testing.TB) (*sim.Port, *vfioserver.Server, string) {
	t.Helper()
	p := must.Get(sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy", Seed: 1}))(t)
	path := filepath.Join(t.TempDir(), "nic")
	s := must.Get(vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { s.Close(); p.Close() })
	return p, s, path
}

func dial(t testing.TB, path string) *Function {
	t.Helper()
	f := must.Get(Dial(path))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func pages(t testing.TB, n int) dma.Memory {
	t.Helper()
	b := must.Get(unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	t.Cleanup(func() { unix.Munmap(b) })
	return dma.Memory{Bytes: b, FD: -1}
}

// startToy starts the device with its rings at the start of memory, and 0x1000 bytes after it.
func startToy(bar *mmio.Window, iova uint64) {
	for off, v := range map[uint64]uint64{0x20: iova, 0x24: iova >> 32, 0x28: 2, 0x2c: 2048, 0x30: iova + 0x1000,
		0x34: iova >> 32, 0x38: 2} {
		bar.Write32(off, uint32(v))
	}
	bar.Write32(4, 1)
}

// client returns a client of a toy device.
func client(t testing.TB) (*sim.Port, *Function) {
	t.Helper()
	p, _, path := serveToy(t)
	return p, dial(t, path)
}

func TestIdentityAndRegisters(t *testing.T) {
	p, f := client(t)
	if id := f.ID(); id.Vendor != toysim.Vendor || id.Device != toysim.Device || id.Class != 0x020000 ||
		id.Revision != 1 {
		t.Errorf("identity: %v class %#x", id, id.Class)
	}
	bar := must.Get(f.BAR(0))(t)
	if v := bar.Read32(0); v != toysim.Magic || bar.Size() != 0x4000 {
		t.Errorf("magic %#x, size %#x", v, bar.Size())
	}
	check.Fails(t, "BAR 1 exists", check.Err(f.BAR(1)), nil)
	check.Equal(t, p.BusMaster(), false, "bus mastering after Dial: %v")
	if err := f.SetBusMaster(true); err != nil || !p.BusMaster() {
		t.Errorf("bus mastering: %v", err)
	}
	if err := f.Reset(); err != nil || p.BusMaster() {
		t.Errorf("bus mastering after reset: %v, %v", p.BusMaster(), err)
	}
	check.Equal(t, bar.Read32(0), toysim.Magic, "after reset magic reads %#x")
}

func TestDoorbellsAreMemory(t *testing.T) {
	p, f := client(t)
	bells := must.Get(f.BAR(2))(t)
	check.Fails(t, "there is memory behind a register that nobody polls", check.Err(bells.Pointer(8, 4)), nil)
	at := must.Get(bells.Pointer(0x40, 4))(t)
	before := p.Counts()
	mmio.Store32((*uint32)(at), 7)
	check.Equal(t, p.Counts(), before, "the store was a message: %+v")
	check.Equal(t, bells.Read32(0x40), 7, "the device sees %#x")
}

// Memory without a file descriptor is accessed by DMA_READ and DMA_WRITE, also while the driver makes its own calls.
func TestDMAByMessages(t *testing.T) {
	p, _, path := serveToy(t)
	near, far := sim.Pair()
	p.Connect(near)
	f := dial(t, path)
	m := pages(t, 1<<16)
	iova := must.Get(f.Map(m))(t)
	bar, _ := f.BAR(0)
	bells, _ := f.BAR(2)
	f.SetBusMaster(true)
	le.PutUint64(m.Bytes[0x0000:], iova+0x4000) // receive descriptor
	le.PutUint64(m.Bytes[0x1000:], iova+0x8000) // transmit descriptor
	le.PutUint16(m.Bytes[0x1008:], 100)
	frame := bytes.Repeat([]byte{0xa5}, 100)
	copy(m.Bytes[0x8000:], frame)
	startToy(bar, iova)
	bells.Write32(0, 1)
	bells.Write32(0x40, 1)
	p.Start()
	far.Send(0, frame)
	await.Holds(func() bool { return bar.Read32(0x40)+bar.Read32(0x48) == 2 })
	p.Stop()
	check.Same(t, far.Recv(0), frame, "sent: %x")
	if got := m.Bytes[0x4000:][:100]; !bytes.Equal(got, frame) || m.Bytes[0x0a] != 1 {
		t.Errorf("received: %x, descriptor %x", got, m.Bytes[:16])
	}
	check.OK(t, f.Unmap(iova, 1<<16))
	check.Same(t, p.Violations(), nil, "violations: %q")
}

// A device's request that is not within one mapping, or not as the protocol has it, is refused, and changes nothing.
func TestRequests(t *testing.T) {
	near, far := pipe(t)
	server := must.Get(proto.NewConn(far, func(m proto.Message) error { m.CloseFDs(); return nil }))(t)
	low, high := pages(t, 4096).Bytes, pages(t, 2<<20).Bytes
	low[4095], high[0] = 7, 8
	f := &Function{path: "x", ran: make(chan struct{}), maps: []mapping{{1 << 32, low}, {1<<32 + 8192, high}}}
	f.conn = must.Get(proto.NewConn(near, f.request))(t)
	f.run()
	ended := make(chan struct{})
	go func() { server.Run(); close(ended) }()
	// The server replies to no request, so Close would wait for ten seconds.
	t.Cleanup(func() { server.Fail(proto.ErrClosed); f.Close(); <-ended })
	const read, write = proto.CmdDMARead, proto.CmdDMAWrite
	for _, c := range []struct {
		name  string
		cmd   proto.Command
		at, n uint64 // from the first mapping
		data  int
		want  error
	}{
		{"all", read, 0, 4096, 0, nil}, {"the last byte", read, 4095, 1, 0, nil}, {"nothing", read, 0, 0, 0, nil},
		{"a byte more", read, 0, 4097, 0, syscall.EFAULT}, {"over the end", read, 4095, 2, 0, syscall.EFAULT},
		{"behind it", read, 4096, 1, 0, syscall.EFAULT}, {"before it", read, 1<<64 - 1, 1, 0, syscall.EFAULT},
		{"before the next", read, 8191, 1, 0, syscall.EFAULT}, {"the next", read, 8192, 1, 0, nil},
		{"the most", read, 8192, 1 << 20, 0, nil}, {"more than that", read, 8192, 1<<20 + 1, 0, syscall.EINVAL},
		{"all", write, 0, 4096, 4096, nil}, {"the last byte", write, 4095, 1, 1, nil},
		{"over the end", write, 4095, 2, 2, syscall.EFAULT}, {"less data", write, 0, 2, 1, syscall.EINVAL},
		{"more data", write, 0, 1, 2, syscall.EINVAL}, {"another command", proto.CmdReset, 0, 1, 0, syscall.ENOTSUP},
	} {
		q := proto.DMABody{Addr: 1<<32 + c.at, Count: c.n}
		r, err := server.Call(c.cmd, proto.Encode(q, bytes.Repeat([]byte{9}, c.data)))
		if c.want != nil {
			check.Fails(t, c.name, err, c.want)
			continue
		}
		want := 16
		if c.cmd == read {
			want += int(c.n)
		}
		if must.OK(t, err); len(r.Body) != want {
			t.Errorf("%s: a reply of %d bytes, want %d", c.name, len(r.Body), want)
		} else if last := r.Body[len(r.Body)-1]; c.cmd == read && c.n == 1 && last != low[4095] && last != high[0] {
			t.Errorf("%s: read %d", c.name, last)
		}
	}
	check.Equal(t, bytes.Count(low, []byte{9}), 4096, "%d bytes were written")
	check.Fails(t, "a short request", check.Err(server.Call(read, make([]byte, 15))), syscall.EINVAL)
}

// Only whole pages are mapped.
func TestMapRefuses(t *testing.T) {
	_, f := client(t)
	m := pages(t, 8192)
	for name, bad := range map[string]dma.Memory{"nothing": {FD: -1}, "a part of a page": {Bytes: m.Bytes[:4097], FD: -1},
		"not from its start": {Bytes: m.Bytes[1:4097], FD: -1}, "before the file": {Bytes: m.Bytes, Off: -1}} {
		check.Fails(t, name, check.Err(f.Map(bad)), nil, "not whole pages")
	}
	iova := must.Get(f.Map(m))(t)
	if iova < 1<<32 || iova >= 1<<47 || iova%(2<<20) != 0 {
		t.Errorf("mapped at %#x", iova)
	}
	check.OK(t, f.Unmap(iova, 8192))
	null := must.Get(os.Open("/dev/null"))(t)
	defer null.Close()
	m.FD = int(null.Fd())
	check.Fails(t, "a file that the server cannot map", check.Err(f.Map(m)), nil, "map 0x2000 bytes")
	check.Equal(t, len(f.maps), 0, "%d mappings are left")
}

func TestInterrupts(t *testing.T) {
	_, f := client(t)
	bar, _ := f.BAR(0)
	var fds []int
	for range 4 {
		fd := must.Get(unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC))(t)
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	fired := func(fd int) bool {
		var b [8]byte
		n, _ := unix.Read(fd, b[:])
		return n == 8
	}
	set := func(flags, index, start, count uint32, fds ...int) error {
		_, err := f.conn.Call(proto.CmdSetIRQs, proto.Encode(
			proto.SetIRQsBody{Argsz: 20, Flags: flags, Index: index, Start: start, Count: count}), fds...)
		return err
	}
	// QEMU's sequence: enable without a descriptor, disable, enable with descriptors.
	must.OK(t, errors.Join(set(0x24, proto.IRQMSIX, 0, 1), set(0x21, proto.IRQMSIX, 0, 0),
		set(0x24, proto.IRQMSIX, 0, 4, fds...)))
	for v, fd := range fds {
		bar.Write32(0x50, uint32(v))
		if !fired(fd) || fired(fds[(v+1)%4]) {
			t.Errorf("vector %d", v)
		}
	}
	must.OK(t, set(0x21, proto.IRQMSIX, 0, 0))
	// INTx is masked when raised, and raised again when it is unmasked.
	must.OK(t, set(0x24, proto.IRQINTx, 0, 1, fds[0]))
	bar.Write32(0x50, 0)
	check.Equal(t, fired(fds[0]), true, "INTx was raised: %v")
	bar.Write32(0x50, 0)
	check.Equal(t, fired(fds[0]), false, "INTx was raised while it is masked: %v")
	if err := set(0x11, proto.IRQINTx, 0, 1); err != nil || !fired(fds[0]) {
		t.Errorf("INTx was not raised when unmasked: %v", err)
	}
	r, w, _ := os.Pipe()
	defer r.Close()
	defer w.Close()
	for name, err := range map[string]error{
		"more vectors than there are": set(0x24, proto.IRQMSIX, 2, 4, fds...),
		"wrapping range":              set(0x24, proto.IRQMSIX, 1<<32-1, 2),
		"fewer descriptors":           set(0x24, proto.IRQMSIX, 0, 4, fds[:2]...),
		"no event descriptor":         set(0x24, proto.IRQMSIX, 0, 1, int(w.Fd())),
		"no such index":               set(0x24, 9, 0, 1),
	} {
		check.Fails(t, name, err, syscall.EINVAL)
	}
}

func TestClientVanishes(t *testing.T) {
	p, _, path := serveToy(t)
	before := openFDs(t)
	for range 20 {
		f := must.Get(Dial(path))(t)
		a := must.Get(dma.NewArena(f, 1<<20))(t)
		f.SetBusMaster(true)
		if bar, err := f.BAR(0); err != nil || bar.Read32(0) != toysim.Magic {
			t.Fatalf("BAR 0: %v", err)
		}
		f.conn.Fail(proto.ErrClosed) // simulates the death of the process
		<-f.ran
		await.Until(t, "the server takes the memory and bus mastering of a client that died",
			func() bool { return p.Mappings() == 0 && !p.BusMaster() })
		a.Close()
		f.Close()
	}
	dial(t, path)
	await.Until(t, "the server closes the file descriptors of a client that left",
		func() bool { return openFDs(t) <= before+4 })
}

func openFDs(t testing.TB) int {
	t.Helper()
	l := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(l)
}

func TestSecondClientIsSentAway(t *testing.T) {
	_, _, path := serveToy(t)
	f := dial(t, path)
	check.Fails(t, "a second client", check.Err(Dial(path)), proto.ErrClosed, "already has a client")
	must.OK(t, f.ReadConfig(0, make([]byte, 4))) // the first client goes on
}

func TestServerVanishes(t *testing.T) {
	_, s, path := serveToy(t)
	f := dial(t, path)
	bar := must.Get(f.BAR(0))(t)
	iova := must.Get(f.Map(pages(t, 4096)))(t)
	s.Close()
	check.Equal(t, bar.Read32(0), ^uint32(0), "reads %#x")
	check.Fails(t, "SetBusMaster", f.SetBusMaster(true), proto.ErrClosed)
	check.OK(t, f.Unmap(iova, 4096))
	must.Close(t, f)
}

// A client that truncates its file after mapping it must not crash the server.
func TestMemoryCutShort(t *testing.T) {
	p, f := client(t)
	fd := must.Get(unix.MemfdCreate("test", unix.MFD_CLOEXEC))(t)
	defer unix.Close(fd)
	unix.Ftruncate(fd, 1<<16)
	m := pages(t, 1<<16)
	m.FD = fd
	iova := must.Get(f.Map(m))(t)
	unix.Ftruncate(fd, 0)
	bar, _ := f.BAR(0)
	bells, _ := f.BAR(2)
	f.SetBusMaster(true)
	startToy(bar, iova)
	bells.Write32(0x40, 1)
	p.Step()
	check.Equal(t, len(p.Violations()) > 0, true, "DMA to memory that is gone is a violation: %v")
	p.ForgetViolations()
}

func TestWriteMulti(t *testing.T) {
	_, f := client(t)
	one := func(off uint64, v uint32) proto.WriteOne {
		w := proto.WriteOne{AccessBody: proto.AccessBody{Offset: off, Count: 4}}
		le.PutUint32(w.Data[:], v)
		return w
	}
	r, err := f.conn.Call(proto.CmdWriteMulti, proto.Encode(uint64(2), one(0x20, 0x1000), one(0x30, 0x2000)))
	if err != nil || len(r.Body) != 8 || le.Uint64(r.Body) != 2 {
		t.Fatalf("reply %x, %v", r.Body, err)
	}
	bar, _ := f.BAR(0)
	if a, b := bar.Read32(0x20), bar.Read32(0x30); a != 0x1000 || b != 0x2000 {
		t.Errorf("registers hold %#x, %#x", a, b)
	}
}

// A client refuses what a server may not say, and closes each file that comes with a reply.
func TestReplies(t *testing.T) {
	type change = func(m proto.Message, body []byte) []byte
	on := func(cmd proto.Command, f func(body []byte) []byte) change {
		return func(m proto.Message, body []byte) []byte {
			if m.Cmd == cmd {
				return f(body)
			}
			return body
		}
	}
	put := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { le.PutUint32(b[at:], v); return b }
	}
	shadow := func(f func([]byte) []byte) change {
		return func(m proto.Message, body []byte) []byte {
			if m.Cmd == proto.CmdGetRegionInfo && le.Uint32(m.Body[8:]) == proto.RegionShadow && len(body) > 32 {
				return f(body)
			}
			return body
		}
	}
	for _, c := range []struct {
		name  string
		reply change
		seals int // of the memory behind the doorbells
		size  int64
		want  string // in the error
	}{
		{name: "as it should be", seals: unix.F_SEAL_SHRINK},
		{name: "another version", reply: on(proto.CmdVersion, put(0, 1)), want: "version"},
		{name: "no PCI function", reply: on(proto.CmdGetInfo, put(4, 1)), want: "not a PCI function"},
		{name: "no configuration space", reply: on(proto.CmdGetInfo, put(8, 7)), want: "not a PCI function"},
		{name: "a short answer", reply: on(proto.CmdRegionRead, func(b []byte) []byte { return b[:len(b)-1] }), want: "REGION_READ of 4 bytes returned 3"},
		{name: "a long answer", reply: on(proto.CmdRegionRead, func(b []byte) []byte { return append(b, 0) }), want: "REGION_READ of 4 bytes returned 5"},
		{name: "another region", reply: on(proto.CmdGetRegionInfo, put(8, 5)), want: "region 0"},
		{name: "an empty BAR", reply: on(proto.CmdGetRegionInfo, put(16, 0)), want: "BAR 0 has 0x0 bytes"},
		{name: "a large BAR", reply: on(proto.CmdGetRegionInfo, put(20, 0x101)), want: "BAR 0 has 0x10100001000 bytes"},
		{name: "memory that may shrink", want: "memory behind BAR 0"},
		{name: "memory that is shorter", seals: unix.F_SEAL_SHRINK, size: 4095, want: "memory behind BAR 0"},
		{name: "memory for less than the BAR", seals: unix.F_SEAL_SHRINK, reply: shadow(put(16, 4095)), want: "memory behind BAR 0"},
		{name: "a loop of capabilities", seals: unix.F_SEAL_SHRINK, reply: shadow(put(36, 32)), want: "capability chain"},
		{name: "a capability outside", seals: unix.F_SEAL_SHRINK, reply: shadow(put(36, 4096)), want: "capability chain"},
		{name: "a capability in the header", seals: unix.F_SEAL_SHRINK, reply: shadow(put(36, 31)), want: "capability chain"},
		{name: "more doorbells than there are", seals: unix.F_SEAL_SHRINK, reply: shadow(put(56, 2)), want: "capability chain"},
		{name: "no room suffices", want: "asks for more room each time", reply: func(m proto.Message, b []byte) []byte {
			if m.Cmd == proto.CmdGetRegionInfo {
				le.PutUint32(b, le.Uint32(m.Body)+8)
			}
			return b
		}},
	} {
		before := openFDs(t)
		near, far := pipe(t)
		var server *proto.Conn
		server = must.Get(proto.NewConn(far, func(m proto.Message) error {
			m.CloseFDs()
			mem := must.Get(unix.MemfdCreate("doorbells", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
			defer unix.Close(mem)
			must.OK(t, unix.Ftruncate(mem, cmp.Or(c.size, 4096)))
			must.Get(unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, c.seals))(t)
			body := toyReply(m)
			if c.reply != nil {
				body = c.reply(m, body)
			}
			return server.Reply(m, body, nil, mem)
		}))(t)
		ended := make(chan struct{})
		go func() { server.Run(); close(ended) }()
		f := &Function{path: "x", ran: make(chan struct{})}
		f.conn = must.Get(proto.NewConn(near, f.request))(t)
		f.run()
		err := f.start()
		var bar *mmio.Window
		if err == nil {
			bar, err = f.BAR(0)
		}
		if c.want != "" {
			check.Fails(t, c.name, err, nil, c.want)
		} else if must.OK(t, err); err == nil {
			for _, r := range [][3]uint64{{0, 4, 0}, {64, 4, 1}, {124, 4, 1}, {128, 4, 0}, {120, 8, 1}, {60, 4, 0},
				{0, 64, 0}, {64, 64, 1}} {
				_, err := bar.Pointer(r[0], r[1])
				check.Equal(t, err == nil, r[2] == 1, fmt.Sprintf("memory behind %d bytes at %d: %%t", r[1], r[0]))
			}
			must.OK(t, f.SetBusMaster(true))
			iova := must.Get(f.Map(pages(t, 4096)))(t)
			check.OK(t, f.Unmap(iova, 4096))
			check.OK(t, f.Reset())
		}
		f.Close()
		far.Close()
		<-ended
		await.Until(t, c.name+": all files are closed", func() bool { return openFDs(t) <= before })
	}
}

// toyReply answers as a server whose BAR 0 has 4096 bytes, with doorbells in bytes 64 to 127.
func toyReply(m proto.Message) []byte {
	switch m.Cmd {
	case proto.CmdVersion:
		return proto.VersionBody()
	case proto.CmdGetInfo:
		return proto.Encode(proto.InfoBody{Argsz: 16, Flags: 3, Regions: proto.NumRegions, IRQs: proto.NumIRQs})
	case proto.CmdDMAUnmap:
		return m.Body
	case proto.CmdRegionRead:
		return append(slices.Clone(m.Body[:16]), make([]byte, le.Uint32(m.Body[12:]))...)
	case proto.CmdGetRegionInfo:
		index := le.Uint32(m.Body[8:])
		if index != proto.RegionShadow {
			return proto.Encode(proto.RegionInfoBody{Argsz: 32, Flags: 3, Index: index, Size: 4096})
		}
		return proto.Encode(proto.RegionInfoBody{Argsz: 80, Flags: 15, Index: index, CapOffset: 32, Size: 4096},
			proto.TypeCap{CapHeader: proto.CapHeader{ID: proto.CapType, Version: 1, Next: 48}, Type: proto.ShadowType,
				Subtype: proto.ShadowSubtype},
			proto.SparseCap{CapHeader: proto.CapHeader{ID: proto.CapSparseMmap, Version: 1}, Areas: 1},
			proto.SparseArea{Offset: 64, Size: 64})
	}
	return nil
}

// Close returns when no request of the device is being served any more: its memory may be unmapped then.
func TestCloseWaits(t *testing.T) {
	near, far := pipe(t)
	defer far.Close()
	conn := must.Get(proto.NewConn(near, nil))(t)
	conn.Fail(proto.ErrClosed)
	synctest.Test(t, func(t *testing.T) {
		f := &Function{path: "x", conn: conn, ran: make(chan struct{})}
		closed := make(chan error, 1)
		go func() { closed <- f.Close() }()
		synctest.Wait()
		check.Equal(t, len(closed), 0, "%d calls of Close have returned")
		close(f.ran)
		check.OK(t, <-closed)
	})
}

func TestGoroutinesEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	p, s, path := serveToy(t)
	f := dial(t, path)
	f.Close()
	s.Close()
	p.Close()
	await.Until(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

func TestTransactionsAreTheModels(t *testing.T) {
	p, f := client(t)
	bar := must.Get(f.BAR(0))(t)
	before := must.Get(f.Transactions())(t)
	for range 7 {
		bar.Read32(0)
	}
	after := must.Get(f.Transactions())(t)
	if n := after["mmio read"] - before["mmio read"]; n != 7 || after["mmio read"] != int64(p.Counts().MMIORead) {
		t.Errorf("7 reads count as %d; %v, the model has %+v", n, after, p.Counts())
	}
}
