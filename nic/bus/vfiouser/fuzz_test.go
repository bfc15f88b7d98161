package vfiouser

import (
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/proof/must"
)

func pipe(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	var c [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c[i] = must.Get(net.FileConn(f))(t).(*net.UnixConn)
		f.Close()
	}
	return c[0], c[1]
}

// FuzzClient feeds arbitrary replies to a client that opens the function and uses it. Each piece of data is the body of
// one reply.
func FuzzClient(f *testing.F) {
	shadow := proto.Encode(proto.RegionInfoBody{Argsz: 64, Flags: 15, Index: proto.RegionShadow, CapOffset: 32,
		Size: 4096}, proto.TypeCap{CapHeader: proto.CapHeader{ID: proto.CapType, Version: 1, Next: 48},
		Type: proto.ShadowType, Subtype: proto.ShadowSubtype},
		proto.SparseCap{CapHeader: proto.CapHeader{ID: proto.CapSparseMmap, Version: 1}, Areas: 1},
		proto.SparseArea{Size: 64})
	config := proto.Encode(proto.AccessBody{Region: 7, Count: 4}, uint32(0x7ec41b36))
	f.Add(proto.VersionBody(), proto.Encode(proto.InfoBody{Argsz: 16, Flags: 3, Regions: proto.NumRegions,
		IRQs: proto.NumIRQs}), config, proto.Encode(proto.RegionInfoBody{Argsz: 32, Flags: 3, Size: 4096}), shadow,
		true)
	f.Add(proto.VersionBody(), proto.Encode(proto.InfoBody{Argsz: 16, Flags: 3, Regions: 9, IRQs: 5}), config,
		proto.Encode(proto.RegionInfoBody{Argsz: 32, Flags: 3, Size: 1 << 63}), shadow, false)
	f.Add(proto.Encode(proto.Version{Major: 1}), []byte{}, []byte{}, []byte{}, []byte{}, false)
	loop := append([]byte(nil), shadow...)
	le.PutUint32(loop[32+4:], 32) // a capability that is its own next
	f.Add(proto.VersionBody(), proto.Encode(proto.InfoBody{Argsz: 16, Flags: 3, Regions: proto.NumRegions,
		IRQs: proto.NumIRQs}), config, proto.Encode(proto.RegionInfoBody{Argsz: 32, Flags: 3, Size: 4096}), loop, true)
	f.Fuzz(func(t *testing.T, hello, info, config, region, shadow []byte, fd bool) {
		near, far := pipe(t)
		defer far.Close()
		go func() {
			var c *proto.Conn
			c, _ = proto.NewConn(far, func(m proto.Message) error {
				m.CloseFDs()
				body := []byte{}
				var fds []int
				switch m.Cmd {
				case proto.CmdVersion:
					body = hello
				case proto.CmdGetInfo:
					body = info
				case proto.CmdRegionRead:
					body = config
					if size := proto.Encode(proto.AccessBody{}); len(config) >= len(size) && len(m.Body) >= len(size) &&
						config[0] == 0 {
						// Reply with the requested index and length, otherwise the client stops at the first reply.
						n := int(le.Uint32(m.Body[12:]))
						body = append(slices.Clone(m.Body[:len(size)]), make([]byte, min(n, 4096))...)
						copy(body[len(size):], config[len(size):])
					}
				case proto.CmdGetRegionInfo:
					if body = region; len(m.Body) >= 12 && le.Uint32(m.Body[8:]) >= proto.RegionShadow {
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
					// the requested region, otherwise the client stops at the first reply
					if len(body) >= 12 && len(m.Body) >= 12 {
						body = slices.Clone(body)
						copy(body[8:12], m.Body[8:12])
					}
				}
				return c.Reply(m, body, nil, fds...)
			})
			c.Run()
		}()
		g := &Function{path: "fuzz", ran: make(chan struct{})}
		g.conn = must.Get(proto.NewConn(near, g.request))(t)
		g.run()
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
