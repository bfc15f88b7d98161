package vfiouser

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// serveAt is the variable that makes the test's program a server: the socket's path.
const serveAt = "REBOUND_TEST_SERVE"

func TestMain(m *testing.M) {
	path := os.Getenv(serveAt)
	if path == "" {
		os.Exit(m.Run())
	}
	p, err := sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy", Seed: 1})
	if err != nil {
		panic(err)
	}
	p.Start()
	if _, err := vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("ready\n")
	io.Copy(io.Discard, os.Stdin) // until the test ends, even if it is killed
	os.Remove(path)
}

// serveProcess serves a toy device from another process, until the test ends or kills it.
func serveProcess(t testing.TB) (path string, server *os.Process) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "nic")
	cmd := exec.Command(must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), serveAt+"="+path)
	cmd.Stderr = os.Stderr
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	must.Get(bufio.NewReader(out).ReadString('\n'))(t)
	return path, cmd.Process
}

// BenchmarkAccess reads and writes a register, and the configuration space.
func BenchmarkAccess(b *testing.B) {
	for _, where := range []struct {
		name  string
		serve func(testing.TB) string
	}{
		{"one process", func(t testing.TB) string { p, _, path := serveToy(t); p.Start(); return path }},
		{"two processes", func(t testing.TB) string { path, _ := serveProcess(t); return path }},
	} {
		b.Run(where.name, func(b *testing.B) {
			f := dial(b, where.serve(b))
			bar := must.Get(f.BAR(0))(b)
			b.Run("read", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if bar.Read32(0) != toysim.Magic {
						b.Fatal("wrong value")
					}
				}
			})
			b.Run("write", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					bar.Write32(0x28, 2)
				}
			})
		})
	}
}

// A server's death ends a call that waits for it, and so does Close in another goroutine.
func TestServerProcessStops(t *testing.T) {
	for name, end := range map[string]func(*Function, *os.Process){
		"SIGKILL": func(_ *Function, server *os.Process) { server.Kill() },
		"Close":   func(f *Function, _ *os.Process) { f.Close() },
	} {
		path, server := serveProcess(t)
		f := dial(t, path)
		must.OK(t, server.Signal(syscall.SIGSTOP))
		await.Until(t, "the server has stopped, and replies no more", func() bool {
			stat := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", server.Pid)))(t)
			return bytes.Contains(stat, []byte(") T "))
		})
		sent, ended := make(chan bool), make(chan error)
		go func() {
			close(sent)
			ended <- f.ReadConfig(0, make([]byte, 4))
		}()
		<-sent
		end(f, server)
		check.Fails(t, name, <-ended, proto.ErrClosed)
		server.Kill()
	}
}
