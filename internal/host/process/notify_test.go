package process

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"}))(t)
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(time.Minute))
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", "")
	return c
}

func TestStates(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"),
		"@rebound-notify-test-" + strconv.Itoa(int(time.Now().UnixNano()))} {
		c := manager(t, name)
		m := must.Get(OpenManager())(t)
		defer m.Close()
		if m.Every() != 1500*time.Millisecond {
			t.Errorf("alive every %v, want half of 3s", m.Every())
		}
		for _, s := range []struct {
			send func() error
			want string
		}{
			{func() error { return m.Ready("one\ntwo\n") }, "READY=1\nSTATUS=one two"},
			{m.Alive, "WATCHDOG=1"},
			{m.Stopping, "STOPPING=1"},
		} {
			must.OK(t, s.send())
			buf := make([]byte, 100)
			n, err := c.Read(buf)
			if err != nil || string(buf[:n]) != s.want {
				t.Errorf("%q, %v; want %q", buf[:n], err, s.want)
			}
		}
		if again, err := OpenManager(); again != nil || err != nil {
			t.Errorf("the environment still names a manager: %v, %v", again, err)
		}
	}
}

// A manager that does not read its socket does not block the program permanently.
func TestDeafManager(t *testing.T) {
	manager(t, filepath.Join(t.TempDir(), "notify"))
	m := must.Get(OpenManager())(t)
	defer m.Close()
	ended := make(chan error)
	go func() {
		for {
			if err := m.Alive(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits forever")
	}
}

// Invalid variables are reported; another process's watchdog is ignored.
func TestEnvironment(t *testing.T) {
	for _, c := range []struct{ socket, usec, pid, want string }{
		{"relative", "", "", "NOTIFY_SOCKET=relative: want the path"},
		{"/nonexistent/socket", "", "", "NOTIFY_SOCKET: dial unixgram /nonexistent/socket"},
		{"/nonexistent/socket", "x", "", "WATCHDOG_USEC=x: want microseconds"},
		{"/nonexistent/socket", "0", "", "WATCHDOG_USEC=0: want microseconds"},
		{"/nonexistent/socket", "86400000001", "", "WATCHDOG_USEC=86400000001: want microseconds"},
		{"/nonexistent/socket", "86400000000", "", "NOTIFY_SOCKET: dial"}, // a day
		{"/nonexistent/socket", "1", "", "NOTIFY_SOCKET: dial"},
		{"/nonexistent/socket", "x", "1", "NOTIFY_SOCKET: dial"},
		{"", "x", "", ""},
	} {
		t.Setenv("NOTIFY_SOCKET", c.socket)
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		m, err := OpenManager()
		if m != nil || c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	var none *Manager
	for name, err := range map[string]error{"Ready": none.Ready(""), "Alive": none.Alive(), "Stopping": none.Stopping(),
		"Close": none.Close()} {
		if err != nil {
			t.Errorf("%s without a manager: %v", name, err)
		}
	}
	check.Equal(t, none.Every(), 0, "Every is %v without a manager")
}
