package simtest

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// Serve runs a model on a vfio-user socket until the end of the test, and returns the far end of its wire, which is down, and its name for a
// driver in this process or another.
func Serve(t testing.TB, m sim.Model) (port *sim.Port, far *sim.Cable, device string) {
	t.Helper()
	port = must.Get(sim.New(m, sim.Options{Name: "served", Seed: 1}))(t)
	near, far := sim.Pair()
	port.Connect(near)
	port.Start()
	path := filepath.Join(t.TempDir(), "s")
	s := must.Get(vfioserver.Listen(path, port, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() {
		s.Close()
		port.Stop()
		port.Close()
	})
	return port, far, "vfio-user:" + path
}
