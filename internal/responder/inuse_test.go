package responder

import (
	"fmt"
	"strings"
	"testing"

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
			_, out, code := w.responder(t, set("nic.device="+port, "respond.addresses="+ours4+"/24", "cpu.cores=1", "nic.driver="+second)...)
			want := fmt.Sprintf("address %s: device is in use: process %d (responder) answers for it on %s", ours4, p.Process.Pid, port)
			if code != exitFailed || !strings.Contains(out, want) {
				t.Errorf("%s beside %s: exit %d, want %q in\n%s", second, first, code, want, out)
			}
		}
		p.stop(t, unix.SIGTERM)
	}
}
