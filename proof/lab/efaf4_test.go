package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

const efaF4Script = efaHelpers + `
load
say probed $ib $ibfar
# suite KEY MODULE: rdma-core's own tests of a module
suite() {
  (cd /usr/lib/python3/dist-packages && python3 tests/run_tests.py --dev $ib --gid 0 --port 1 -v --durations 0 $2) >/tmp/suite 2>&1 || { show failed tail -60 /tmp/suite; fail "$2"; }
  show $1 grep -E '\.\.\. |^Ran |^OK|^[0-9.]+s |^FAILED' /tmp/suite
  say $1
}
suite srd tests.test_efa_srd
suite efadv tests.test_efadv
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm # libfabric's
show fi fi_info -p efa
say fi
bothrun dgram fi_pingpong -p efa -e dgram -d @D-dgrm
bothrun rdm fi_pingpong -p efa -e rdm -d @D-rdm
need rmmod efa
say gone
`

// TestLabEFAOthers runs rdma-core's own tests of SRD and of the provider's interface, and libfabric, on the model.
// Third parties wrote them against the real device (rung F4).
func TestLabEFAOthers(t *testing.T) {
	guests(t)
	beside(t, "efa/F4", func(t *testing.T) {
		l := newEFALab(t, efasim.EFA3, efasim.EFA3, sim.Impairment{})
		for _, f := range l.functions {
			f.foreign = true
		}
		l.run(efaF4Script, 5*time.Minute, []string{pyverbs}, func(key string, r Result) error {
			switch text := strings.Join(r[key], "\n"); key {
			case "srd", "efadv":
				want := map[string]int{"srd": 14, "efadv": 6}[key]
				if !strings.Contains(text, fmt.Sprintf("Ran %d tests", want)) || !strings.Contains(text, "\nOK") ||
					strings.Contains(text, "skipped") {
					return fmt.Errorf("%s: all of %d tests are expected to run", key, want)
				}
				l.last = l.counters()
			case "fi":
				if strings.Count(text, "provider: efa") < 4 {
					return fmt.Errorf("libfabric does not see both devices")
				}
			}
			return l.account(key)
		})
		proven(t, "F4", "rdma-core's tests, libfabric", "20 tests, fi_pingpong over datagrams and SRD")
	})
}
