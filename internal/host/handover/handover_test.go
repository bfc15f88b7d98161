package handover

import (
	"bytes"
	"errors"
	"fmt"
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
			all = append(all, nic.Endpoint{Address: nic.Address{GID: ourGID, QPN: uint32(0x100*q + i + 1), QKey: 7}, Queue: q, Service: s})
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
	t.Cleanup(func() {
		check.OK(t, s.Close())
	})
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

func TestPingpong(t *testing.T) {
	s, b := listen(t)
	c := dial(t, s, 0)
	say(t, c, "0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00", "0000:000001:000000:fe80000000000000005262fffe000001\x00")
	must.Get(c.Write([]byte("done\x00")))(t)
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after \"done\": %d bytes, %v", n, err)
	}
	if len(b.greeted) != 1 || b.greeted[0] != theirGID {
		t.Errorf("greeted %v", b.greeted)
	}
	// The next client gets the other queue.
	say(t, dial(t, s, 0), "0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00", "0000:000101:000000:fe80000000000000005262fffe000001\x00")
}

// Messages of ib_send_lat, version 6.24, in the order of its client: version, page size, cache line, MTU, then its keys
// for each handshake.
func TestPerftest(t *testing.T) {
	s, b := listen(t)
	c := dial(t, s, 1)
	say(t, c, "6.24"+strings.Repeat("\x00", 12), "6.20"+strings.Repeat("\x00", 12))
	say(t, c, "\x00\x00\x10\x00", "\x00\x00\x10\x00")
	say(t, c, "\x00\x00\x00\x40", "\x00\x00\x00\x40")
	say(t, c, "5\x00", "5\x00")
	for range 5 {
		say(t, c, "0000:0000:00002a:f1e2d3:00001234:00007f0011223344:fe:80:00:00:00:00:00:00:08:16:0e:ff:fe:0c:9b:a3:00000000:\x00",
			"0000:0000:000002:000000:00000000:0000000000000000:fe:80:00:00:00:00:00:00:00:52:62:ff:fe:00:00:01:00000000:\x00")
	}
	if len(b.greeted) != 1 || b.greeted[0] != theirGID {
		t.Errorf("greeted %v", b.greeted)
	}
	c.Close()
}

func TestExchange(t *testing.T) {
	s, b := listen(t)
	for i, want := range []uint32{1, 0x101} {
		a, err := Exchange(s.listeners[0].Addr().(*net.TCPAddr).AddrPort(), nic.Address{GID: theirGID, QPN: 9, QKey: 5})
		if err != nil || a != (nic.Address{GID: ourGID, QPN: want, QKey: 5}) {
			t.Errorf("exchange %d: %v, %v", i+1, a, err)
		}
	}
	if len(b.greeted) != 2 {
		t.Errorf("greeted %v", b.greeted)
	}
	if _, err := Exchange(netip.MustParseAddrPort("127.0.0.1:1"), nic.Address{GID: theirGID}); err == nil || !strings.Contains(err.Error(), "hand-over with 127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestRubbish(t *testing.T) {
	s, b := listen(t)
	version := "6.24" + strings.Repeat("\x00", 12)
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
		version + "\x00\x00\x10\x00\x00\x00\x00\x405\x00" + "0000:0000:00002a:f1e2d3:00001234:00007f0011223344:00000000\x00", // without a GID
	} {
		c := dial(t, s, 0)
		must.Get(c.Write([]byte(text)))(t)
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%q: %v", text, err)
		}
		c.Close()
	}
	if len(b.greeted) != 0 {
		t.Errorf("greeted %v", b.greeted)
	}
	say(t, dial(t, s, 0), "0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00", "0000:000")
}

// keys are what ib_send_lat sends before and after a test.
const keys = "0000:0000:00002a:f1e2d3:00001234:00007f0011223344:fe:80:00:00:00:00:00:00:08:16:0e:ff:fe:0c:9b:a3:00000000:\x00"

// startTest runs a perftest client up to its test, during which it stays connected.
func startTest(t *testing.T, c net.Conn) {
	say(t, c, "6.24"+strings.Repeat("\x00", 12), "6.20"+strings.Repeat("\x00", 12))
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
	if _, err := io.Copy(io.Discard, first); err != nil && !strings.Contains(err.Error(), "reset") { // ends when the server closes it
		t.Error(err)
	}
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
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for _, c := range all {
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
	}
	check.OK(t, <-closed)
	s.listeners = nil // closed already
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2:18515": "", "[fd00::2]:1": "", "127.0.0.1:0": "",
		"10.0.0.2": "is not ADDRESS:PORT", ":18515": "is not ADDRESS:PORT", "host:1": "is not ADDRESS:PORT",
		"0.0.0.0:18515": "is not the address of one host", "[::]:18515": "is not the address of one host", "10.0.0.2:65533": "would be at 65536",
	} {
		_, err := ParseAddress(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00"))
	f.Add([]byte("0000:0000:00002a:f1e2d3:00001234:00007f0011223344:fe:80:00:00:00:00:00:00:08:16:0e:ff:fe:0c:9b:a3:00000000:\x00"))
	f.Add([]byte("6.24\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
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
	f.Add([]byte("0000:00002a:abcdef:fe8000000000000008160efffe0c9ba3\x00done\x00"))
	f.Add([]byte(fmt.Sprintf("6.24%s\x00\x00\x10\x00\x00\x00\x00\x405\x00", strings.Repeat("\x00", 12))))
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
