package responder

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An address that another responder on the same interface answers for is refused, with any pair of drivers, and the
// message names the process.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	drivers := []string{"xdp", "afxdp", "afpacket"}
	for _, first := range drivers {
		p := w.start(t, nil, "nic.driver="+first, "cpu.cores=0")
		for _, second := range append(drivers, "auto") {
			out, code := w.refused(t, "nic.driver="+second)
			want := fmt.Sprintf("address %s: device is in use: process %d (responder) answers for it on %s", ours4, p.Process.Pid, port)
			if code != exitFailed || !strings.Contains(out, want) {
				t.Errorf("%s beside %s: exit %d, want %q in\n%s", second, first, code, want, out)
			}
		}
		p.stop(t, unix.SIGTERM)
	}
}

// refused runs a responder that should exit at once.
func (w *wire) refused(t *testing.T, sets ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := &ender{end: cancel}
	args := []string{}
	for _, s := range append([]string{"nic.device=" + port, "respond.addresses=" + ours4 + "/24", "cpu.cores=1"}, sets...) {
		args = append(args, "-set", s)
	}
	c := exec.CommandContext(ctx, program(t), args...)
	c.Stdout, c.Stderr = b, b
	w.here.do(t, func() { c.Run() })
	return b.String(), c.ProcessState.ExitCode()
}

// ender ends a process that is ready.
type ender struct {
	strings.Builder
	end func()
}

func (e *ender) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "ready driver=") {
		e.end()
	}
	return e.Builder.Write(p)
}
