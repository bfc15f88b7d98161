// Package docs runs the commands of README.md and docs/ on two hosts joined by a veth pair, as printed, and compares
// their output with the pages.
package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// play is a block of commands of a page. It is run as printed, except for edits: pairs of old and new text, most of
// which make it shorter.
type play struct {
	page, has string   // the first block of this page that contains this text
	edits     []string // pairs
	says      []string // regular expressions for the output
}

// The responder of README.md, which answers while the blocks of a page run.
var responder = play{page: "README.md", has: "rebound-responder check",
	edits: []string{"rebound-responder check", "rebound-responder check || true"}, says: []string{
		`(?m)^warning +CPU \d+ is not isolated(.*)\n +fix: `, ready}}

const (
	ready   = `(?m)^ready driver=xdp device=eth1 mac=[0-9a-f:]{17} addresses=10.0.0.[12]/24$`
	summary = `(?m)^summary +xdp on eth1, .*s\nanswered +[\d,]+$`
	trip    = `(?m)^round trip p50 [\d.]+ .s\*?, p99 [\d.]+ .s\*?, p99.9 [\d.]+ .s\*?(, where this host's own lag accounts for [^;]*)?; [\d,]+ of [\d,]+ lost(, [\d,]+ [a-z ]+)*$`
)

// reserved are edits of the block with the responder: the pages in docs measure an address that no host has.
var reserved = []string{"-set respond.addresses=10.0.0.1/24", "-set nic.device=eth1 -set respond.addresses=10.0.0.2/24"}

// once and alternate shorten a measurement and one with -ab.
var (
	once      = []string{"rebound-bench run", "rebound-bench run -duration 800ms -runs 8 -self-test 0s"}
	alternate = []string{"rebound-bench run", "rebound-bench run -duration 1s -slice 50ms -self-test 0s", "10.0.0.3",
		"10.0.0.1"}
)

// plays are the blocks in the order of each page. A block can use the files of earlier ones.
var plays = [][]play{
	{
		{page: "README.md", has: "-transport socket", edits: append([]string{"rebound-bench run 10", "sysctl -qw net.ipv4.ping_group_range='0 2147483647'\nrebound-bench run 10"}, once...), says: []string{trip}},
		{page: "README.md", has: "-out out/load", edits: once, says: []string{trip, `report out/before\n(?s:.*)report out/load\n`}},
		{page: "README.md", has: "name=50us,do=ssh peer", edits: alternate[:2], says: []string{`(?m)^ +round trip +A: 50us +B: 0us +shift of runs +interval$`, `(?m)^ +p50 `, "page out/coalescing/index.html"}},
		{page: "README.md", has: "rebound-bench compare out/before out/after", edits: []string{"rebound-bench compare", "cp -r out/before out/after; rebound-bench compare"}, says: []string{"no change seen"}},
	}, {
		{page: "docs/use/measure.md", has: "rebound-bench run 10.0.0.2\n", edits: once, says: []string{trip}},
		{page: "docs/use/measure.md", has: "iperf3 -c", edits: []string{"rebound-bench run", "rebound-bench run -duration 2400ms -runs 8 -self-test 0s"},
			says: []string{`(?m)^ +before +[\d.]+ .s`, `(?m)^ +during +[\d.]+ .s`, `(?m)^ +after +[\d.]+ .s`}},
		{page: "docs/use/measure.md", has: "-ab target=10.0.0.3 -out out/ab", edits: alternate, says: []string{`A: target=10.0.0.2 +B: target=10.0.0.1`, `A: besteffort +B: ef`}},
	}, {
		{page: "docs/use/compare.md", has: "rebound-bench versus", edits: []string{"rebound-bench versus", "rebound-bench versus -duration 500ms -slice 50ms -self-test 0s", "10.0.0.3", "10.0.0.1"},
			says: []string{`(?m)^(10\.0\.0\.[12] is better|no difference seen|cannot tell|it depends)`, `(?m)^ICMP$`,
				"page out/versus/index.html"}},
		{page: "docs/use/compare.md", has: "-auto p99", edits: []string{"10.0.0.3", "10.0.0.1", "-auto-within 30m", "-auto-within 1s -slice 50ms -self-test 0s -out out/ab"}, says: []string{`A: target=10.0.0.2 +B: target=10.0.0.1`}},
		{page: "docs/use/compare.md", has: "-fail-if", edits: []string{"p99", "p50", "out/before out/after", "out/ab/01* out/ab/01*"}, says: []string{`no change seen`}},
		{page: "docs/use/compare.md", has: "rebound-bench history nightly/", edits: []string{"rebound-bench", "cp -r out/ab nightly; rebound-bench"}, says: []string{"page history.html"}},
	}, {
		{page: "docs/use/other-tools.md", has: "rebound-bench report -html ping.html ping.txt", edits: []string{
			"rebound-bench report", "for f in ping before after; do ping -c 30 -i 0.01 10.0.0.2 >$f.txt; done\n" +
				"rebound-bench run 10.0.0.2 -duration 800ms -runs 8 -self-test 0s -out r >/dev/null; cp r/rtt.hgrm before.hgrm; cp r/rtt.hgrm after.hgrm\nrebound-bench report"},
			says: []string{`(?m)^ping.txt, icmp to 10.0.0.2, 30 samples`, `A: before.txt +B: after.txt`,
				`A: before.hgrm +B: after.hgrm`}},
		{page: "docs/use/other-tools.md", has: "-unit ms before/ after/", edits: []string{"rebound-bench", "for d in before after; do mkdir $d; for i in 1 2 3 4 5 6 7 8; do cp $d.hgrm $d/$i.hgrm; done; done\nrebound-bench", "-unit ms", "-unit us"},
			says: []string{"no change seen"}},
	}, {
		{page: "docs/cards/simnic.md", has: "ip netns exec sim rebound-simnic",
			edits: []string{"/tmp/", "./", "sleep 1", "until ip netns exec sim ip link show rb0; do sleep 0.1; done",
				"sleep 2", "until grep -q ^ready ready; do sleep 0.1; done", "10.9.0.2/24 &", "10.9.0.2/24 >ready &", "20000 packets transmitted, 20000 received, 0% packet loss", "", "20000", "2000"},
			says: []string{"2000 packets transmitted, 2000 received, 0% packet loss",
				`(?m)^{"ports":\[{"model":"ixgbe"`}},
	}, {
		{page: "docs/use/xdp.md", has: "rebound-responder status", edits: []string{"unpin NAME        # remove one", "unpin none || true"}},
	},
}

// left lists pages whose blocks are not run, or not all of them, with the reason.
var left = map[string]string{
	"docs/cards/82599.md":           "needs the card",
	"docs/cards/efa.md":             "needs the card",
	"docs/cards/ena.md":             "needs the card",
	"docs/cards/mlx4.md":            "needs the card",
	"docs/cards/mlx5.md":            "needs the card",
	"docs/cards/virtio.md":          "needs the function; the lab does this",
	"docs/use/compare.md":           "prom: needs a Prometheus, which fleet/prom's tests have",
	"docs/fleet/many-hosts.md":      "needs a Prometheus and does not end by itself; proof/endtoend's TestWatchFleet does this",
	"docs/use/explain.md":           "needs a planted program; proof/endtoend's TestExplainNamesTheResponder does this",
	"docs/use/first-hour.md":        "scripts/first-hour makes the page by playing it",
	"docs/use/measure.md":           "EFA needs the card",
	"docs/internals/performance.md": "does not end by itself; internal/responder's BenchmarkReady does this",
	"docs/use/xdp.md":               "the block does not end by itself; internal/responder's TestPinned does this",
	"docs/fleet/metrics.md":         "needs the package",
	"docs/cards/simnic.md":          "the two blocks below do not end by themselves; proof/simserve and scripts/results do this",
	"docs/fleet/watch.md":           "does not end by itself; proof/endtoend's TestWatch does this",
	"docs/use/appliance.md":         "boots machines; packaging/appliance's tests do this",
}

// blocks returns the command blocks of a page.
func blocks(t *testing.T, page string) (all []string) {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("../..", page)))(t)
	for i, part := range strings.Split(string(b), "\n```") {
		if i%2 == 1 {
			_, text, _ := strings.Cut(part, "\n")
			all = append(all, text+"\n")
		}
	}
	return all
}

// hosts are two network namespaces joined by a veth pair, whose ends are both called eth1: the measuring host has
// 10.0.0.9, the target 10.0.0.1.
type hosts struct {
	t         *testing.T
	dir       string
	near, far *testbed.Namespace
}

func newHosts(t *testing.T) *hosts {
	needs.Root(t, "network namespaces")
	needs.Programs(t, "ping", "ip", "unshare")
	h := &hosts{t: t, dir: t.TempDir()}
	h.near, h.far = must.Get(testbed.NewNamespace())(t), must.Get(testbed.NewNamespace())(t)
	t.Cleanup(h.near.Close)
	t.Cleanup(h.far.Close)
	must.OK(t, h.near.Do(func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "eth1"})
		pair.PeerName, pair.PeerNamespace = "eth1", netlink.NsFd(h.far.FD)
		return netlink.LinkAdd(pair)
	}))
	for i, address := range []string{"10.0.0.9/24", "10.0.0.1/24"} {
		must.OK(t, []*testbed.Namespace{h.near, h.far}[i].Do(func() error {
			for _, name := range []string{"lo", "eth1"} {
				l, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				if a, err := netlink.ParseAddr(address); err != nil || name == "eth1" && netlink.AddrAdd(l, a) != nil {
					return fmt.Errorf("address %s: %v", address, err)
				}
				if err := netlink.LinkSetUp(l); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	bin := filepath.Join(h.dir, "bin")
	must.OK(t, os.MkdirAll(bin, 0o755))
	for _, name := range []string{"bench", "responder", "simnic", "watch"} {
		must.OK(t, os.Symlink(programs.Path(t, name), filepath.Join(bin, "rebound-"+name)))
	}
	// a peer whose setting changes nothing, a load that is none
	for name, script := range map[string]string{"ssh": "exit 0", "iperf3": "exec sleep 3600"} {
		must.OK(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	return h
}

// start runs lines of shell on a host, with a view of /sys of that host, and with named network namespaces that end
// with it.
func (h *hosts) start(far bool, lines string) (*exec.Cmd, *programs.Output) {
	h.t.Helper()
	c := exec.Command("unshare", "--mount", "sh", "-c",
		"mount -t sysfs sysfs /sys && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec bash -e -c \"$0\"",
		lines)
	c.Dir, c.Env = h.dir, append(os.Environ(), "PATH="+filepath.Join(h.dir, "bin")+":"+os.Getenv("PATH"), "NO_COLOR=1")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := &programs.Output{}
	c.Stdout, c.Stderr = out, out
	side := h.near
	if far {
		side = h.far
	}
	must.OK(h.t, side.Do(c.Start))
	h.t.Cleanup(func() { unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	return c, out
}

func (h *hosts) expect(what, said string, want []string) {
	h.t.Helper()
	for _, w := range want {
		if !regexp.MustCompile(w).MatchString(said) {
			h.t.Errorf("%s: printed no %s:\n%s", what, w, said)
		}
	}
}

func (h *hosts) play(far bool, p play) (*exec.Cmd, *programs.Output) {
	h.t.Helper()
	all := blocks(h.t, p.page)
	i := slices.IndexFunc(all, func(b string) bool { return strings.Contains(b, p.has) })
	if i < 0 {
		h.t.Fatalf("%s has no block with %q", p.page, p.has)
	}
	lines := all[i]
	for k := 0; k < len(p.edits); k += 2 {
		if !strings.Contains(lines, p.edits[k]) {
			h.t.Errorf("%s: the block with %q has no %q to edit", p.page, p.has, p.edits[k])
		}
		lines = strings.ReplaceAll(lines, p.edits[k], p.edits[k+1])
	}
	return h.start(far, lines)
}

var ours = regexp.MustCompile(`(?m)^(ip netns exec \w+ )?rebound-(bench|responder|simnic) [a-z-]`)

// Each block with commands of ours is played, or its page is in left.
func TestBlocksArePlayed(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md") {
		page = strings.TrimPrefix(page, "../../")
		for _, b := range blocks(t, page) {
			if !ours.MatchString(b) || left[page] != "" {
				continue
			}
			n++
			if !slices.ContainsFunc(slices.Concat(append(plays, []play{responder})...), func(p play) bool {
				// or the same block on another page
				return strings.Contains(b, p.has) && (p.page == page || slices.Contains(blocks(t, p.page), b))
			}) {
				t.Errorf("%s: this block is not played:\n%s", page, b)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d blocks were found", n)
	}
}

func TestBlocksOfPages(t *testing.T) {
	for _, page := range plays {
		t.Run(filepath.Base(page[0].page), func(t *testing.T) {
			h := newHosts(t)
			target := responder
			if page[0].page != "README.md" {
				target.edits = append(slices.Clone(target.edits), reserved...)
			}
			server, answered := h.play(true, target)
			await.Until(t, "the responder is ready", func() bool {
				return regexp.MustCompile(ready).MatchString(answered.String())
			}, answered.String)
			h.expect(responder.page, answered.String(), responder.says)
			for _, p := range page {
				c, out := h.play(false, p)
				if _ = c.Wait(); c.ProcessState.ExitCode() != 0 {
					t.Errorf("the block with %q: exit status %d", p.has, c.ProcessState.ExitCode())
				}
				h.expect(p.page, out.String(), p.says)
				t.Logf("%s\n%s", p.has, out)
			}
			unix.Kill(-server.Process.Pid, unix.SIGINT)
			_ = server.Wait()
			h.expect(responder.page, answered.String(), []string{summary})
		})
	}
}
