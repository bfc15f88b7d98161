package handover

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var ourGID, theirGID = netip.MustParseAddr("fe80::52:62ff:fe00:1"), netip.MustParseAddr("fe80::816:eff:fe0c:9ba3")

// book is a port with two queues.
type book struct {
	mu      sync.Mutex
	greeted []netip.Addr
}

func (b *book) Endpoints() (all []nic.Endpoint) {
	for q := range 2 {
		for i, s := range []nic.Service{nic.EchoUD, nic.EchoSRD} {
			all = append(all, nic.Endpoint{Address: nic.Address{GID: ourGID, QPN: uint32(0x100*q + i + 1), QKey: 7},
				Queue: q, Service: s})
		}
	}
	return all
}

func (b *book) Prewarm(gid netip.Addr) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.greeted = append(b.greeted, gid)
	return nil
}

func listen(t *testing.T) (*Server, *book) {
	t.Helper()
	b := &book{}
	s := must.Get(Listen(netip.MustParseAddrPort("127.0.0.1:0"), b, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { check.OK(t, s.Close()) })
	return s, b
}

func dial(t *testing.T, s *Server, service int) net.Conn {
	t.Helper()
	c := must.Get(net.Dial("tcp", s.listeners[service].Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

func say(t *testing.T, c net.Conn, text, answer string) {
	t.Helper()
	must.Get(c.Write([]byte(text)))(t)
	b := make([]byte, len(answer))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != answer {
		t.Fatalf("%q was answered by %q, %v; want %q", text, b, err, answer)
	}
}

// greetedOnce fails the test unless only the client of these tests was greeted, once.
func (b *book) greetedOnce(t *testing.T) {
	t.Helper()
	check.Same(t, b.greeted, []netip.Addr{theirGID}, "greeted %v")
}

// What the clients of these tests send, and what the server replies.
const (
	pingpong      = "0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00"
	pingpongReply = "0000:000001:000000:fe80000000000000005262fffe000001\x00"

	keys      = "0000:0000:00002a:f1e2d3:00001234:00007f0011223344:fe:80:00:00:00:00:00:00:08:16:0e:ff:fe:0c:9b:a3:00000000:\x00"
	keysReply = "0000:0000:000002:000000:00000000:0000000000000000:fe:80:00:00:00:00:00:00:00:52:62:ff:fe:00:00:01:00000000:\x00"

	zeros   = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	version = "6.24" + zeros
)

func TestPingpong(t *testing.T) {
	s, b := listen(t)
	c := dial(t, s, 0)
	say(t, c, pingpong, pingpongReply)
	must.Get(c.Write([]byte("done\x00")))(t)
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after \"done\": %d bytes, %v", n, err)
	}
	b.greetedOnce(t)
	// The next client gets the other queue.
	say(t, dial(t, s, 0), pingpong, strings.Replace(pingpongReply, "000001", "000101", 1))
}

// Messages of ib_send_lat, version 6.24, in the order of its client: version, page size, cache line, MTU, then its keys
// for each handshake.
func TestPerftest(t *testing.T) {
	s, b := listen(t)
	c := dial(t, s, 1)
	say(t, c, version, "6.20"+zeros)
	say(t, c, "\x00\x00\x10\x00", "\x00\x00\x10\x00")
	say(t, c, "\x00\x00\x00\x40", "\x00\x00\x00\x40")
	say(t, c, "5\x00", "5\x00")
	for range 5 {
		say(t, c, keys, keysReply)
	}
	b.greetedOnce(t)
	c.Close()
	say(t, dial(t, s, 1), "10.24"+zeros[1:], "6.20"+zeros) // a longer version than ours
}

func TestExchange(t *testing.T) {
	s, b := listen(t)
	for i, want := range []uint32{1, 0x101} {
		a, err := Exchange(s.listeners[0].Addr().(*net.TCPAddr).AddrPort(), nic.Address{GID: theirGID, QPN: 9, QKey: 5})
		if err != nil || a != (nic.Address{GID: ourGID, QPN: want, QKey: 5}) {
			t.Errorf("exchange %d: %v, %v", i+1, a, err)
		}
	}
	check.Equal(t, len(b.greeted), 2, "greeted %d times")
	_, err := Exchange(netip.MustParseAddrPort("127.0.0.1:1"), nic.Address{GID: theirGID})
	check.Fails(t, "no peer", err, nil, "hand-over with 127.0.0.1:1")
}

func TestRubbish(t *testing.T) {
	s, b := listen(t)
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"0000:00002a:abcdef:0000000000000000000000000000000\x00\x00",
		"0000:00002a:abcdef:00000000000000000000000000000000\x00",
		"0000:0x002a:abcdef:fe8000000000000008160efffe0c9ba3\x00",
		"zzzz:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00",
		strings.Repeat("\x00", 200),
		strings.Repeat("\xff", 200),
		"1.0" + strings.Repeat("\x00", 13),
		"nan" + strings.Repeat("\x00", 13),
		version + "\x00\x00\x10\x00\x00\x00\x00\x405\x00" + strings.Repeat("x", 108),
		version + "\x00\x00\x10\x00\x00\x00\x00\x405\x00" +
			"0000:0000:00002a:f1e2d3:00001234:00007f0011223344:00000000\x00", // without a GID
	} {
		c := dial(t, s, 0)
		must.Get(c.Write([]byte(text)))(t)
		closed(t, c)
		c.Close()
	}
	check.Equal(t, len(b.greeted), 0, "greeted %d times")
	say(t, dial(t, s, 0), pingpong, "0000:000")
}

// closed waits until the server closes a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

// startTest runs a perftest client up to its test, during which it stays connected.
func startTest(t *testing.T, c net.Conn) {
	say(t, c, version, "6.20"+zeros)
	say(t, c, "\x00\x00\x10\x00\x00\x00\x00\x405\x00", "\x00\x00\x10\x00\x00\x00\x00\x405\x00")
	say(t, c, keys, "0000:0000:")
}

// Any number of clients that connect and send nothing neither block a new client nor end the tests of others.
func TestSilentClientsMakeRoom(t *testing.T) {
	s, _ := listen(t)
	test := dial(t, s, 0)
	startTest(t, test)
	first := dial(t, s, 0)
	for range 3 * maxConns {
		dial(t, s, 0)
	}
	startTest(t, dial(t, s, 0))
	closed(t, first)
	must.Get(test.Write([]byte(keys)))(t)
	if _, err := io.ReadFull(test, make([]byte, 2*len(keys)-len("0000:0000:"))); err != nil {
		t.Errorf("a client in its test was disconnected: %v", err)
	}
}

// If all clients are running tests, another one is rejected; Close disconnects those that send nothing.
func TestBounds(t *testing.T) {
	s, _ := listen(t)
	var all []net.Conn
	for range maxConns {
		all = append(all, dial(t, s, 0))
		startTest(t, all[len(all)-1])
	}
	c := dial(t, s, 1)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one client too many: %d bytes, %v", n, err)
	}
	ended := make(chan error)
	go func() { ended <- s.Close() }()
	for _, c := range all {
		closed(t, c)
	}
	check.OK(t, <-ended)
	s.listeners = nil // closed already
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2:18515": "", "[fd00::2]:1": "", "127.0.0.1:0": "",
		"10.0.0.2": "is not ADDRESS:PORT", ":18515": "is not ADDRESS:PORT", "host:1": "is not ADDRESS:PORT",
		"0.0.0.0:18515": "is not the address of one host", "[::]:18515": "is not the address of one host",
		"10.0.0.2:65533": "would be at 65536",
	} {
		_, err := ParseAddress(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(pingpong))
	f.Add([]byte(keys))
	f.Add([]byte(version))
	f.Fuzz(func(t *testing.T, b []byte) {
		lower := bytes.ToLower(b)
		if d, err := parsePingpong(b); err == nil && !bytes.Equal(appendPingpong(nil, d), lower) {
			t.Errorf("%q is written back as %q", b, appendPingpong(nil, d))
		}
		if d, err := parseKeys(b); err == nil && !bytes.Equal(appendKeys(nil, d)[:98], lower[:98]) {
			t.Errorf("%q is written back as %q", b, appendKeys(nil, d))
		}
		if v, err := parseVersion(b); err == nil && !(v >= 1) {
			t.Errorf("version %v of %q", v, b)
		}
	})
}

// Serving terminates for arbitrary bytes from a client, however they are split.
func FuzzServe(f *testing.F) {
	f.Add([]byte(pingpong + "done\x00"))
	f.Add([]byte(version + "\x00\x00\x10\x00\x00\x00\x00\x405\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Server{book: &book{}, log: slog.New(slog.DiscardHandler)}
		us, them := net.Pipe()
		go io.Copy(io.Discard, them)
		go func() {
			them.Write(b)
			them.Close()
		}()
		_ = s.serve(us, nic.EchoUD)
		us.Close()
	})
}
