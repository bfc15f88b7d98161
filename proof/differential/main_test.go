package differential

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The output depends on the seed, and not on the number of workers.
func TestRun(t *testing.T) {
	tables := map[string]bool{}
	for _, args := range [][]string{{"-workers", "1"}, {"-workers", "3"}, {"-seed", "2"}} {
		var out bytes.Buffer
		must.OK(t, run(context.Background(), append(args, "-frames", "200000"), &out))
		if !strings.Contains(out.String(), "262144 frames") || !strings.Contains(out.String(), ": no difference") {
			t.Errorf("%v: %s", args, out.String())
		}
		table, _, _ := strings.Cut(out.String(), "262144 frames")
		tables[table] = true
	}
	check.Equal(t, len(tables), 2, "%d tables from two seeds")
}

func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{{"-frames", "0"}, {"-frames", "many"}, {"-workers", "0"}, {"more"},
		{"-frames", "1e300"}} {
		if err := run(context.Background(), args, new(bytes.Buffer)); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Every rule that differs between the two sides is detected.
func TestDifferenceIsFound(t *testing.T) {
	for name, change := range map[string]func(*rules){
		"port":     func(r *rules) { r.oracle.UDPPorts = []uint16{7} },
		"address":  func(r *rules) { r.oracle.Addresses = r.oracle.Addresses[1:] },
		"mode":     func(r *rules) { r.oracle.Open = true },
		"checksum": func(r *rules) { r.oracle.ChecksumBytes = 40 },
		"VLAN":     func(r *rules) { r.oracle.VLANs = []uint16{0} },
		"time":     func(r *rules) { r.oracle.Time++ },
	} {
		j := must.Get(newJudge())(t)
		change(j.rules[0])
		if err := j.chunk(1, 1); err == nil || !strings.Contains(err.Error(), "strict: to") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
