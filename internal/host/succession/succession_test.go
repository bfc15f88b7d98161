package succession

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// port hands over one end of a pipe.
type port struct {
	file int
	more string // of the state
}

func (p port) Bequest() (nic.Inheritance, error) {
	return nic.Inheritance{State: []byte("state" + p.more), Files: []int{p.file}}, nil
}
func (p port) Position() ([]byte, error) { return []byte("position"), nil }
func (p port) Continue([]byte) error     { return nil }

var names atomic.Int64

// claimed is a listening socket and its name.
func claimed(t *testing.T) (fd int, name string) {
	t.Helper()
	name = fmt.Sprintf("@rebound/test/%d/%d", os.Getpid(), names.Add(1))
	fd = must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	must.OK(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	must.OK(t, unix.Listen(fd, 4))
	return fd, name
}

func offer(t *testing.T, fd int, p nic.Heritable, user int) (o *Offer, stopped chan struct{}) {
	t.Helper()
	stopped = make(chan struct{})
	o = must.Get(Listen([]int{fd}, p, user, func() { close(stopped) }, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { o.Close() })
	return o, stopped
}

// find finds a predecessor, and closes the files of its device.
func find(t *testing.T, name string) *Predecessor {
	t.Helper()
	p := must.Get(Find(name))(t)
	for _, f := range p.Files {
		unix.Close(f)
	}
	return p
}

// continues fails the test if a predecessor has stopped.
func continues(t *testing.T, stopped chan struct{}) {
	t.Helper()
	select {
	case <-stopped:
		t.Error("stopped before a successor was ready")
	default:
	}
}

// A successor gets the files and the state; one that gives up changes nothing; the next one makes the predecessor stop, and learns the position.
func TestTakeOver(t *testing.T) {
	fd, name := claimed(t)
	in, out, err := os.Pipe()
	must.OK(t, err)
	defer in.Close()
	o, stopped := offer(t, fd, port{file: int(out.Fd())}, os.Geteuid())
	must.OK(t, must.Get(net.Dial("unix", name))(t).Close()) // to see whose claim it is
	for range 2 {
		find(t, name).Close()
	}
	p, err := Find(name)
	if err != nil || string(p.State) != "state" || len(p.Files) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	continues(t, stopped)
	finished := make(chan error)
	go func() {
		<-stopped
		out.Close()
		finished <- o.Finish()
	}()
	position, err := p.Take()
	if err != nil || string(position) != "position" {
		t.Errorf("position %q, %v", position, err)
	}
	check.OK(t, <-finished)
	end := os.NewFile(uintptr(p.Files[0]), "pipe")
	check.OK(t, check.Err(end.WriteString("hello")))
	end.Close()
	if b, err := io.ReadAll(in); err != nil || string(b) != "hello" { // and no one else has the file
		t.Errorf("read %q, %v", b, err)
	}
}

// Another user gets nothing, and neither does a client that sends something else.
func TestRefused(t *testing.T) {
	fd, name := claimed(t)
	o, stopped := offer(t, fd, port{file: fd}, os.Geteuid()+1)
	if os.Geteuid() == 0 {
		t.Log("root may, whatever the user is")
	} else if p, err := Find(name); err == nil || !strings.Contains(err.Error(), "does not hand over") {
		t.Errorf("another user: %+v, %v", p, err)
	}
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x05hello", "\xff\xff\xff\xff", "\x00\x00\x00\x05ready"} {
		c := must.Get(net.Dial("unix", name))(t)
		io.WriteString(c, text)
		c.(*net.UnixConn).CloseWrite()
		if b, err := io.ReadAll(c); len(b) != 0 {
			t.Errorf("%q: %q, %v", text, b, err)
		}
		c.Close()
	}
	continues(t, stopped)
	check.OK(t, o.Finish())
}

func TestNobodyThere(t *testing.T) {
	if p, err := Find("@rebound/test/nobody"); p != nil || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

// A device with many queues has a description longer than the socket's buffer.
func TestLongState(t *testing.T) {
	fd, name := claimed(t)
	more := strings.Repeat("0123456789", largest/10-1)
	file := must.Get(os.Open(os.DevNull))(t)
	defer file.Close() // not before, as the garbage collector would
	offer(t, fd, port{int(file.Fd()), more}, os.Geteuid())
	p := find(t, name)
	defer p.Close()
	if string(p.State) != "state"+more || len(p.Files) != 1 {
		t.Errorf("%d bytes and %d files, want %d and 1", len(p.State), len(p.Files), len(more)+5)
	}
}
