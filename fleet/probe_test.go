package fleet

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/rows"
)

func TestEveryRowRoundTrips(t *testing.T) {
	rows.RoundTrip(t, func() (*setting.Table, func() string) {
		s := newWatchSettings()
		return s.table, func() string {
			values := *s
			values.table = nil
			return fmt.Sprintf("%+v", values)
		}
	}, "testdata/settings.txt")
}

// Values that are wrong, and values that exclude each other.
func TestProbeRefuses(t *testing.T) {
	config := filepath.Join(t.TempDir(), "watch.toml")
	must.OK(t, os.WriteFile(config, []byte("[probe]\nrate = \"many\"\n"), 0o644))
	for args, says := range map[string]string{
		"-config /nonexistent/watch.toml":                              "/nonexistent/watch.toml",
		"-config " + config:                                            "watch.toml:2: probe.rate: \"many\": want probes a second",
		"-rate 0.001 127.0.0.1":                                        "-rate",
		"-rate 10001 127.0.0.1":                                        "want probes a second to each target, 0.01 to 10000",
		"-rate 1,2 127.0.0.1":                                          "want probes a second to each target",
		"-interval 7s 127.0.0.1":                                       "7s does not divide an hour",
		"-interval 500ms 127.0.0.1":                                    "500ms is not 1s to 1h0m0s",
		"-interval 61m 127.0.0.1":                                      "1h1m0s is not 1s to 1h0m0s",
		"-bytes 1023k 127.0.0.1":                                       "want bytes, a mebibyte or more",
		"tcp:127.0.0.1":                                                "tcp",
		"127.0.0.1 udp:127.0.0.1:0":                                    "udp:127.0.0.1:0",
		"-dns tcp:_x._udp.example.org":                                 "-dns",
		"-source 10.0.0.1 -source 10.0.0.9 127.0.0.1":                  "probe.source: want one address of each family at most",
		"-source fd00::1 -source fd00::2 127.0.0.1":                    "probe.source: want one address of each family at most",
		"-gateway 10.0.0.1 -gateway fd00::1 -gateway 10.0.0.2 udp:h:7": "probe.gateway: want one address of each family at most",
		"-driver efa -iface 0000:00:06.0 127.0.0.1":                    "nic.driver: efa carries messages, not frames",
		"-driver xdp -iface eth0 127.0.0.1":                            "nic.driver: xdp answers in the kernel",
		"-qdisc -driver afxdp -iface eth0 127.0.0.1":                   "probe.qdisc: driver afxdp sends without the kernel's queueing discipline",
		"-driver mlx5 127.0.0.1":                                       "nic.device: is empty: driver mlx5 needs its device",
		"-driver afxdp -iface 0000:00:06.0 127.0.0.1":                  "-driver",
		"-transport socket -iface 0000:00:06.0 127.0.0.1":              "probe.transport: 0000:00:06.0 is not a kernel interface",
		"-rate 10k -timeout 1m 127.0.0.1":                              "probe.rate: 10000 probes a second for a timeout of 1m0s: too many",
		"-push-url gopher://h/ 127.0.0.1":                              "gopher",
	} {
		var stderr bytes.Buffer
		// No machine has this CPU: a watch that should not start ends there.
		code := Run(append([]string{"probe", "-core", "65536"}, strings.Fields(args)...), io.Discard, &stderr)
		check.Equal(t, code, process.Usage, args+": exit %d")
		check.Contains(t, stderr.String(), says)
	}
}

// The options of a watch from a file in which every setting that it has differs from its default.
func TestProbeOptions(t *testing.T) {
	s := newWatchSettings()
	must.OK(t, s.table.Read("testdata/watch.toml"))
	s.table.Assign()
	must.OK(t, s.table.Apply())
	var stderr bytes.Buffer
	o := must.Get(s.options(&command.Env{Stderr: &stderr}))(t)
	check.Equal(t, stderr.String(), "", "it warns: %s")
	check.Equal(t, o.NIC.Log, o.Log, "the driver logs to %v, not to %v")
	check.Equal(t, o.Push.Interval, 30*time.Second, "it pushes every %v")
	o.Log, o.NIC.Log = nil, nil
	golden.Equal(t, "testdata/options.txt", strings.ReplaceAll(fmt.Sprintf("%+v\n", *o), " ", "\n"))
}

func TestConfigCommand(t *testing.T) {
	var printed, stderr bytes.Buffer
	check.Equal(t, Run([]string{"config"}, &printed, io.Discard), process.Done, "exit %d")
	check.Contains(t, printed.String(), "# What rebound-watch measures", "[probe]", "rate = \"1\"")
	check.Equal(t, Run([]string{"config", "x"}, io.Discard, &stderr), process.Usage, "exit %d")
	check.Contains(t, stderr.String(), `unexpected argument "x"`)
}
