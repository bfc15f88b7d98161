package vfiouser

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raw builds a message.
func raw(id uint16, cmd command, flags uint32, body ...any) []byte {
	b := encode(body...)
	return encode(id, uint16(cmd), uint32(headerSize+len(b)), flags, uint32(0), b)
}

// pipe returns the two ends of a socket pair.
func pipe(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		n, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		c[i] = n.(*net.UnixConn)
	}
	return c[0], c[1]
}

// FuzzServer lets a client send anything, with a file descriptor attached to the first byte or not. The server must send
// it away or answer, hold nothing of it afterwards, and serve the next one.
func FuzzServer(f *testing.F) {
	hello := raw(0, cmdVersion, 0, versionBody())
	all := append([]byte(nil), hello...)
	for i, m := range [][]byte{
		raw(1, cmdDMAMap, 0, dmaMapBody{32, 3, 0, 1 << 32, 4096}), raw(2, cmdGetInfo, 0, infoBody{Argsz: 16}),
		raw(3, cmdGetRegionInfo, 0, regionInfoBody{Argsz: 4096, Index: shadowRegion + 2}),
		raw(4, cmdGetIRQInfo, 0, irqInfoBody{16, 0, 2, 0}), raw(5, cmdSetIRQs, 0, setIRQsBody{20, 0x24, 2, 0, 1}),
		raw(6, cmdRegionRead, 0, accessBody{0, 7, 256}), raw(7, cmdRegionWrite, 0, accessBody{4, 7, 2}, uint16(6)),
		raw(8, cmdRegionWrite, flagNoReply, accessBody{0x28, 0, 4}, uint32(2)),
		raw(9, cmdWriteMulti, 0, uint64(1), writeOne{accessBody{4, 0, 4}, [8]byte{1}}), raw(10, cmdReset, 0),
		raw(11, cmdDMAUnmap, 0, dmaUnmapBody{24, 0, 1 << 32, 4096}), raw(12, cmdDMAUnmap, 0, dmaUnmapBody{24, unmapAll, 0, 0}),
		raw(13, cmdDMARead, flagReply, dmaBody{0, 4}, uint32(0)), raw(14, 77, 0),
	} {
		f.Add(append(append([]byte(nil), hello...), m...), i%2 == 0)
		if i < 12 {
			all = append(all, m...)
		}
	}
	f.Add(all, true)
	f.Add([]byte{0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, false)
	p, _, path := serveToy(f)
	f.Fuzz(func(t *testing.T, data []byte, fd bool) {
		sock, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		var oob []byte
		if fd {
			mem, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(mem)
			unix.Ftruncate(mem, 8192)
			oob = unix.UnixRights(mem)
		}
		sock.SetDeadline(time.Now().Add(timeout))
		if n, _, err := sock.WriteMsgUnix(data, oob, nil); err == nil {
			sock.Write(data[n:])
		}
		p.Step()
		sock.CloseWrite()
		for buf := make([]byte, 1<<16); ; {
			if _, err := sock.Read(buf); err != nil {
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Fatal("the server neither answers nor hangs up")
				}
				break
			}
		}
		sock.Close()
		g, err := Dial(path)
		if err != nil {
			t.Fatalf("the next client: %v", err)
		}
		if n := p.Mappings(); n > 0 || p.BusMaster() {
			t.Errorf("%d mappings and bus mastering %v from the client before", n, p.BusMaster())
		}
		g.Close()
	})
}

// FuzzClient lets a server answer anything: replies to a client that opens the function and uses it. Each piece of data is
// the body of one reply.
func FuzzClient(f *testing.F) {
	shadow := encode(regionInfoBody{64, 15, shadowRegion, 32, 4096, 0}, typeCap{capHeader{capType, 1, 48}, shadowType, shadowSubtype},
		sparseCap{capHeader: capHeader{capSparseMmap, 1, 0}, Areas: 1}, sparseArea{0, 64})
	config := encode(accessBody{0, 7, 4}, uint32(0x7ec41b36))
	f.Add(versionBody(), encode(infoBody{16, 3, numRegions, numIRQs}), config, encode(regionInfoBody{32, 3, 0, 0, 4096, 0}), shadow, true)
	f.Add(versionBody(), encode(infoBody{16, 3, 9, 5}), config, encode(regionInfoBody{32, 3, 0, 0, 1 << 63, 0}), shadow, false)
	f.Add(encode(version{1, 0}), []byte{}, []byte{}, []byte{}, []byte{}, false)
	loop := append([]byte(nil), shadow...)
	le.PutUint32(loop[32+4:], 32) // a capability that is its own next
	f.Add(versionBody(), encode(infoBody{16, 3, numRegions, numIRQs}), config, encode(regionInfoBody{32, 3, 0, 0, 4096, 0}), loop, true)
	f.Fuzz(func(t *testing.T, hello, info, config, region, shadow []byte, fd bool) {
		near, far := pipe(t)
		defer far.Close()
		go func() {
			c := newConn(far)
			c.run(func(m message) error {
				m.closeFDs()
				body := []byte{}
				var fds []int
				switch m.cmd {
				case cmdVersion:
					body = hello
				case cmdGetInfo:
					body = info
				case cmdRegionRead:
					body = config
				case cmdGetRegionInfo:
					if body = region; len(m.body) >= 12 && le.Uint32(m.body[8:]) >= shadowRegion {
						body = shadow
						if fd {
							mem, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
							if err != nil {
								return err
							}
							defer unix.Close(mem)
							unix.Ftruncate(mem, 4096)
							unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
							fds = []int{mem}
						}
					}
				}
				return c.reply(m, body, nil, fds...)
			})
		}()
		g := &Function{path: "fuzz", conn: newConn(near), ran: make(chan struct{})}
		go func() {
			defer close(g.ran)
			g.conn.run(g.request)
		}()
		if g.start() == nil {
			if w, err := g.BAR(0); err == nil {
				w.Read32(0)
				if at, err := w.Pointer(0, 4); err == nil {
					*(*uint32)(at) = 1
				}
			}
			if iova, err := g.Map(pages(t, 4096)); err == nil {
				g.Unmap(iova, 4096)
			}
			g.Reset()
		}
		g.Close()
	})
}
