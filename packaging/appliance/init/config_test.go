package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// Messages name the line in the whole file, whichever part it is in, and words of the command line win.
func TestParse(t *testing.T) {
	const file = "# first\n[appliance]\nmode = \"probe\"\n\n[nic]\ndevice = \"eth1\"\n[respond]\naddresses = [\"10.0.0.2/24\"]\n"
	for _, c := range []struct {
		text  string
		words []string
		err   string
	}{
		{file, nil, ""},
		{strings.ReplaceAll(file, "\n", "\r\n"), nil, ""},
		{"", nil, ""},
		{strings.Replace(file, "probe", "nap", 1), nil, "rebound.toml:3: appliance.mode: "},
		{strings.Replace(file, "mode", "mood", 1), nil, "rebound.toml:3: appliance.mood: unknown key"},
		{"[nic]\n[appliance]\nport = 70000\n", nil, "rebound.toml:3: appliance.port: "},
		{"[nic]\ndevice = \n", nil, "rebound.toml:2: "},
		{"[appliance]\naddress = \"10.1.0.2/24\"\n", nil, "rebound.toml:2: appliance.address: "},
		{"[appliance]\nmanagement = \"eth0\"\naddress = \"10.1.0.2/24\"\n", nil, ""},
		{"[appliance]\nclock = \"/dev/ptp\"\n", nil, "rebound.toml:2: appliance.clock: "},
		{"[appliance]\nclock = \"/dev/ptp12\"\n", nil, ""},
		{file, []string{"appliance.mode=nap"}, "kernel command line: appliance.mode: "},
		{file, []string{"appliance.mode=bench", "nic.device=eth2"}, ""},
	} {
		got, err := parse(c.text, c.words)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)) {
			t.Errorf("%q %v: %v, want %q", c.text, c.words, err, c.err)
		}
		if c.text == file && len(c.words) == 2 && (got.mode != "bench" || got.device != "eth2" || !got.answers ||
			len(got.sets) != 1) {
			t.Errorf("%+v", got)
		}
	}
	// Devices that carry messages have no addresses.
	if c := must.Get(parse("[respond]\nhandover = \"10.1.0.2:18515\"\n", nil))(t); !c.answers || !c.messages {
		t.Error("respond.handover is nothing to answer for")
	}
	got := must.Get(parse(file, nil))(t)
	if lines := strings.Split(got.file, "\n"); lines[5] != "device = \"eth1\"" || strings.Contains(got.file, "probe") {
		t.Errorf("the responder's part is %q", got.file)
	}
}

// The file on the stick has every default: it is as good as an empty one, and the console's answers fit in.
func TestDefaultFile(t *testing.T) {
	if os.Getenv("PRINT_DEFAULT") != "" {
		os.Exit(printDefault())
	}
	cmd := exec.Command(must.Get(os.Executable())(t), "-test.run=^TestDefaultFile$")
	cmd.Env = append(os.Environ(), "PRINT_DEFAULT=1")
	text := string(must.Get(cmd.Output())(t))
	c := must.Get(parse(text, nil))(t)
	if c.mode != "respond" || c.answers || c.device != "" || c.watchdog != time.Minute || c.noIOMMU {
		t.Errorf("%+v", c)
	}
	c = must.Get(parse(fill(text, "0000:01:00.0", "10.0.0.2/24"), nil))(t)
	if c.device != "0000:01:00.0" || !c.answers || strings.Count(c.file, "addresses =") != 1 {
		t.Errorf("%+v", c)
	}
	c = must.Get(parse(fill("[nic]\n", "eth1", "10.0.0.2/24"), nil))(t)
	if c.device != "eth1" || !c.answers {
		t.Errorf("%+v", c)
	}
}

func TestFromKernel(t *testing.T) {
	url, words := fromKernel(
		"rebound.efi console=tty0 rebound.config=http://a/b?c=d rebound.appliance.mode=bench rebound.other x.rebound.y.z=1")
	if url != "http://a/b?c=d" || strings.Join(words, " ") != "appliance.mode=bench" {
		t.Errorf("%q %q", url, words)
	}
	if got := missing("isolcpus=1-N nohz_full=1-N panic=10"); strings.Join(got, " ") != "rcu_nocbs" {
		t.Errorf("%q", got)
	}
}

// A program that works for a while is started again at once, one that does not after longer and longer.
func TestBackoff(t *testing.T) {
	var b backoff
	for range 20 {
		b.after(0)
	}
	if w := b.after(time.Second); w != lastWait {
		t.Errorf("%v after many failures", w)
	}
	if w := b.after(longRun); w != firstWait {
		t.Errorf("%v after a long run", w)
	}
}

const metricsPage = `# TYPE rebound_answered_total counter
rebound_answered_total{kind="icmp",queue="0"} 3
rebound_answered_total{kind="udp",queue="0"} 4
# TYPE rebound_wait_seconds summary
rebound_wait_seconds{queue="0",quantile="0.999"} 2e-06
rebound_wait_seconds{queue="0",quantile="1"} 0.001
rebound_wait_seconds_sum{queue="0"} 0
rebound_wait_seconds_count{queue="0"} 9
`

func TestFigures(t *testing.T) {
	var s status
	must.OK(t, figures([]byte(metricsPage), &s))
	if s.Answered != 7 || s.GapP999 != "2µs" || s.GapMax != "1ms" {
		t.Errorf("%+v", s)
	}
}
