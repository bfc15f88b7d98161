package simtest

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// Serve runs a model on a vfio-user socket until the end of the test, and returns the other end of its wire, which is
// down, and its name for a driver in this process or another.
func Serve(t testing.TB, m sim.Model) (port *sim.Port, far *sim.Cable, device string) {
	t.Helper()
	port, err := sim.New(m, sim.Options{Name: "served", Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	near, far := sim.Pair()
	port.Connect(near)
	port.Start()
	path := filepath.Join(t.TempDir(), "s")
	s, err := vfioserver.Listen(path, port, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		port.Stop()
		port.Close()
	})
	return port, far, "vfio-user:" + path
}
