package lab

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

var isolationDir = flag.String("isolation", "",
	"have TestLabIsolation measure what each step of cpu.isolate gives in the guest, and write the tables to this `FOLDER`")

// TestLabIsolation runs "peers isolate" in the guest, where cgroup v2, the fair server and nohz_full are available, on
// a stock kernel with and without a boot parameter that isolates CPU 1. It is a measurement, so it runs only on
// request:
//
//	go test ./proof/lab -run TestLabIsolation -isolation $PWD/results
func TestLabIsolation(t *testing.T) {
	if *isolationDir == "" {
		t.Skip("a measurement of five minutes: -isolation FOLDER runs it")
	}
	for name, cmdline := range map[string]string{"running": "",
		"booted": "isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			r, err := s.play(Machine{Limit: 10 * time.Minute, Append: cmdline, Script: isolationScript,
				Files: s.programs("prove")}, "failed")
			must.OK(t, err)
			text := strings.Join(r["table"], "\n") + "\n"
			if !strings.Contains(text, "| Round trip |") {
				t.Fatalf("no table:\n%s", text)
			}
			must.OK(t, os.WriteFile(filepath.Join(*isolationDir, "isolation-guest-"+name+".md"), []byte(text), 0o644))
		})
	}
}

const isolationScript = helpers + `
need mount -t cgroup2 none /sys/fs/cgroup
mount -t debugfs none /sys/kernel/debug 2>/dev/null
prove peers isolate -alone -rounds 3 -each 2s -interval 200us -out /tmp/table >/tmp/out 2>/tmp/err || { show failed cat /tmp/err; fail "peers isolate ended with $?"; }
show table cat /tmp/table
say measured
`
