package responder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// hostile is a text that forges a line, commands a terminal, and changes the direction of writing.
const hostile = "x\nFORGED\fFORGED\v\r\x1b]0;title\a\u009b31m\u202egnp\u2028'\"`"

// harmless fails if an output has a control character, a forged line, or very much text.
func harmless(t *testing.T, what, out string) {
	t.Helper()
	if i := strings.IndexFunc(out, func(r rune) bool {
		return r != '\n' && r != '\t' &&
			!unicode.IsGraphic(r)
	}); i >= 0 || !utf8.ValidString(out) {
		t.Errorf("%s prints %q", what, out[max(i-60, 0):min(max(i, 0)+20, len(out))])
	}
	if strings.Contains("\n"+out, "\nFORGED") {
		t.Errorf("%s prints a forged line: %q", what, out)
	}
	if len(out) > 64<<10 {
		t.Errorf("%s prints %d bytes", what, len(out))
	}
}

func TestHostileArguments(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	raw := hostile + "\xff\x9b31m"
	q, _ := json.Marshal(hostile)
	quoted, long := string(q), strings.Repeat("y", 1<<20-100)
	var all [][]string
	for i, text := range []string{raw + " = 1", quoted + " = 1", "[nic]\n" + quoted + " = 1", "[" + quoted + "]\nx = 1",
		"[nic]\ndevice = " + quoted, "[nic]\ndriver = " + quoted,
		"[respond]\naddresses = [" + quoted + "]", "[stats]\nlisten = " + quoted, "[stats]\nhosts = [" + quoted + "]",
		"x = \"" + raw, "[nic]\ndriver = \"" + long + "\"", long + " = 1",
		"[stats]\nreport = \"/proc/\u202e\\u001b/x\"\n[nic]\ndevice = \"lo\"\n[respond]\naddresses = [\"10.0.0.1\"]"} {
		f := file(fmt.Sprintf("%d\x1b[2J.toml", i), text)
		all = append(all, []string{"-config", f}, []string{"probe", "-o", dir, "-config", f, "nodevice"})
	}
	for _, args := range append(all, []string{raw}, []string{"-" + raw}, []string{"-config", dir + "/" + raw},
		[]string{"-set", raw}, []string{"-set", raw + "=1"}, []string{"-set", "nic.driver=" + raw},
		[]string{"-set", "nic.driver=" + long}, []string{"-set", "nic.device=" + raw, "-set",
			"respond.addresses=10.0.0.1"}, []string{"nics", raw}, []string{"status", raw}, []string{"unpin", raw}, []string{"bind", raw},
		[]string{"unbind", raw}, []string{"probe", "-o", dir, raw}, []string{"probe", "-stage", raw, "x"},
		[]string{"probe", "-" + raw}, []string{"manual", raw}, []string{"completion", raw}, []string{"release", raw},
		[]string{"version", raw}, []string{"config", raw}) {
		var stdout, stderr bytes.Buffer
		if code := command(args, &stdout, &stderr); code == exitDone {
			t.Errorf("%.60q: exit 0", args)
		}
		harmless(t, fmt.Sprintf("%.60q", args), stdout.String()+stderr.String())
	}
}

// An interface may have any name that is no path and has no spaces: lists, checks, logs, the ready line, the summary
// and the metrics page show it escaped, and a scrape in either format succeeds.
func TestHostileInterface(t *testing.T) {
	w := newWire(t)
	const name = "a\x1b[2J\xff\u202eb"
	w.here.do(t, func() {
		l := must.Get(netlink.LinkByName(port))(t)
		must.OK(t, netlink.LinkSetDown(l))
		if err := netlink.LinkSetName(l, name); err != nil {
			t.Skipf("the kernel does not allow the name: %v", err)
		}
		must.OK(t, netlink.LinkSetUp(l))
		for _, args := range [][]string{{"nics"}, {"check", "-set", `nic.device="a\u001b[2J"`}} {
			var stdout, stderr bytes.Buffer
			command(args, &stdout, &stderr)
			harmless(t, args[0], stdout.String()+stderr.String())
			if args[0] == "nics" && !strings.Contains(stdout.String(), `a\u001b[2J\xff\u202eb`) {
				t.Errorf("not in the list:\n%s", &stdout)
			}
		}
	})
	for _, driver := range []string{"afpacket", "xdp"} {
		p := w.start(t, nil, "nic.driver="+driver, "nic.generic_xdp=true", "stats.listen=127.0.0.1:0",
			"nic.device="+name, "stats.report="+filepath.Join(t.TempDir(), "r"))
		harmless(t, driver+": the page", w.metrics(t, p))
		harmless(t, driver, p.Ready+p.stop(t, unix.SIGTERM)+p.Log.String())
	}
}
