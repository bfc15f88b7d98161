package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// scripted is a target whose replies to its first probes are impaired; it answers no others.
type scripted struct {
	mu    sync.Mutex
	count uint32 // probes
	ports []uint16
	reply func(s *scripted, port uint16, probe []byte) [][]byte
}

func (s *scripted) answer(port uint16, probe []byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return s.reply(s, port, probe)
}

func (s *scripted) probes() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

const scriptLength = 40

// impaired sends two of ten replies twice, two with a wrong bit, and two not at all.
func impaired(s *scripted, _ uint16, probe []byte) [][]byte {
	if s.count > scriptLength {
		return nil
	}
	switch s.count % 5 {
	case 1:
		return [][]byte{probe, probe}
	case 2:
		return [][]byte{spoil(probe)}
	case 3:
		return nil
	}
	return [][]byte{probe}
}

// oneDead answers probes from all ports but the second that it sees, and traces from that one.
func oneDead(s *scripted, port uint16, probe []byte) [][]byte {
	if !slices.Contains(s.ports, port) {
		s.ports = append(s.ports, port)
	}
	switch {
	case binary.BigEndian.Uint32(probe[4:]) >= traceSeq:
		s.count--
	case len(s.ports) > 1 && port == s.ports[1]:
		return nil
	}
	return [][]byte{probe}
}

// stateful is a STAMP reflector (RFC 8762 §4.3.2) that loses two of five replies.
func stateful(s *scripted, _ uint16, probe []byte) [][]byte {
	out := echohost.Reflect(probe)
	binary.BigEndian.PutUint32(out, s.count-1)
	if s.count > scriptLength || s.count%5 < 2 {
		return nil
	}
	return [][]byte{out}
}

func silent(*scripted, uint16, []byte) [][]byte { return nil }

// listen answers at a port of the loopback interface.
func (s *scripted) listen(t *testing.T) (port uint16) {
	c := must.Get(net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))))(t)
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			for _, b := range s.answer(from.Port(), bytes.Clone(buf[:n])) {
				c.WriteToUDPAddrPort(b, from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// lockedText is a log that is read while it is written.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// ran is a watch in this process.
type ran struct {
	t   *testing.T
	log *lockedText
	url string
	hup chan struct{}
	end func()
}

// runWatch starts a watch of the targets in a file.
func runWatch(t *testing.T, file string, o Options) *ran {
	t.Helper()
	r := &ran{t: t, log: &lockedText{}, hup: make(chan struct{})}
	o.Sources.List, o.Sources.Defaults.Probes = file, targets.Probes{Interval: 10 * time.Millisecond}
	o.Timeout, o.Core, o.Idle, o.Schema, o.Listen = time.Second, -1, "sleep", 5, "127.0.0.1:0"
	o.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- Run(ctx, o, r.hup, io.Discard) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		must.OK(t, <-over)
	})
	address := regexp.MustCompile(`msg=metrics url=(http://\S+)/metrics`)
	await.Until(t, "the metrics page listens", func() bool {
		if m := address.FindStringSubmatch(r.log.String()); m != nil {
			r.url = m[1]
		}
		return r.url != ""
	}, r.log.String)
	t.Cleanup(r.end)
	return r
}

// get returns a page, "" if it is not served now.
func (r *ran) get(path string) string {
	a, err := http.Get(r.url + path)
	if err != nil {
		return ""
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		return ""
	}
	return string(b)
}

// until waits for values of the metrics page.
func (r *ran) until(what string, good func(map[string]float64) bool) (v map[string]float64) {
	r.t.Helper()
	await.Until(r.t, what, func() bool {
		v = map[string]float64{}
		for line := range strings.Lines(r.get("/metrics")) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && line[0] != '#' {
				v[name+"}"], _ = strconv.ParseFloat(value, 64)
			} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && line[0] != '#' {
				v[name], _ = strconv.ParseFloat(value, 64)
			}
		}
		return len(v) > 0 && good(v)
	}, r.log.String, func() string { return fmt.Sprint(v) })
	return v
}

// firstReplies is the number of a target's first replies.
func firstReplies(v map[string]float64, target string) float64 {
	return v["rebound_rtt_seconds_count{"+target+"}"] + v[`rebound_replies_trouble_total{kind="untimed",`+target+"}"]
}

// listenService is a service manager that this process notifies, and returns what it gets, line by line.
func listenService(t *testing.T) *lockedText {
	path, got := filepath.Join(t.TempDir(), "notify"), &lockedText{}
	c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 1<<12)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			got.Write(append(buf[:n], '\n'))
		}
	}()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "100000")
	t.Setenv("WATCHDOG_PID", "")
	return got
}

// The watch's counts are those of its targets, each with another fault, through sockets and through a card.
func TestRun(t *testing.T) {
	needs.Long(t)
	const labels = `proto="%s",target="%[1]s:%[2]s:%[3]d"`
	for _, transport := range []string{"socket", "raw"} {
		t.Run(transport, func(t *testing.T) {
			bad, dead, stamp, none := &scripted{reply: impaired}, &scripted{reply: oneDead},
				&scripted{reply: stateful},
				&scripted{reply: silent}
			host, o := "127.0.0.1", Options{Transport: transport,
				Source: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
			ports, all := []uint16{7001, 7002, 7003, 7004}, []*scripted{bad, dead, stamp, none}
			if transport == "socket" {
				for i, s := range all {
					ports[i] = s.listen(t)
				}
			} else {
				host = "10.0.0.2"
				o.NIC = cards.Config{Driver: "auto", Push: "auto"}
				o.NIC.RingSize = 256
				o.NIC.Device = echohost.Start(t, netip.MustParseAddr(host), func(from, to uint16, b []byte) [][]byte {
					return all[to-ports[0]].answer(from, b)
				})
				o.Source[0] = netip.MustParseAddr("10.0.0.1")
			}
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), "list")
			o.Dir, o.Bound, o.Interval, o.Days = dir, 1<<30, time.Second, 7
			list := fmt.Sprintf("udp:[::1]:7 site=ams\nudp:%s:%d __param_source_ports=4\nstamp:%[1]s:%[3]d\n"+
				"udp:%[1]s:%[4]d __param_dscp=46\nudp:localhost:%[4]d __param_dscp=46\n", host, ports[1], ports[2],
				ports[3])
			first := fmt.Sprintf("udp:%s:%d\n", host, ports[0])
			must.OK(t, os.WriteFile(file, []byte(first+list), 0o644))
			service := listenService(t)
			w := runWatch(t, file, o)
			of := func(i int, proto string) string { return fmt.Sprintf(labels, proto, host, ports[i]) }
			kinds := func(v map[string]float64, i int, proto, kind string) float64 {
				return v[`rebound_replies_trouble_total{kind="`+kind+`",`+of(i, proto)+"}"]
			}
			v := w.until("all replies are counted", func(v map[string]float64) bool {
				return firstReplies(v, of(0, "udp")) == scriptLength*3/5 && firstReplies(v, of(2,
					"stamp")) == scriptLength*3/5 &&
					v["rebound_lost_total{"+of(3, "udp")+"}"] > 20 && firstReplies(v, of(1, "udp")) > 100
			})
			for kind, want := range map[string]float64{"duplicate": scriptLength / 5, "corrupt": scriptLength / 5} {
				check.Equal(t, kinds(v, 0, "udp", kind), want, kind+" %v")
			}
			w.until("a path is down, and traced", func(v map[string]float64) bool {
				down := 0
				for name, up := range v {
					if strings.HasPrefix(name, "rebound_path_up{") && up == 0 {
						down++
					}
				}
				return down == 1 && strings.Contains(w.log.String(), "trace of the source port")
			})
			must.OK(t, os.WriteFile(file, []byte(list), 0o644))
			w.hup <- struct{}{}
			v = w.until("a target is gone, and a log is written", func(v map[string]float64) bool {
				return v["rebound_watch_targets"] == 5 && v["rebound_watch_disk_bytes"] > 1000 &&
					kinds(v, 0, "udp", "corrupt") == 0 && w.get("/healthz") != "" &&
					strings.Contains(w.get("/"), "1 down, 1 silent, 2 not probed, 1 up")
			})
			ofOne, text := regexp.MustCompile(fmt.Sprintf(`^rebound_.*(_total|:%d"})$|:%d"}$`, ports[1], ports[2])),
				[]string{}
			for name := range v {
				if ofOne.MatchString(name) && !strings.Contains(name, "last_hop") { // only where traces are possible
					text = append(text, regexp.MustCompile(`source_port="\d+"`).ReplaceAllString(name,
						`source_port="S"`))
				}
			}
			slices.Sort(text)
			names := strings.Join(slices.Compact(text), "\n")
			w.end()
			logs := ""
			for _, f := range must.Get(filepath.Glob(filepath.Join(dir, "*.hlog")))(t) {
				logs += string(must.Get(os.ReadFile(f))(t))
			}
			for i, s := range all {
				counts := regexp.MustCompile(fmt.Sprintf(`%d-\w+ from=\S+ to=\S+ sent=(\d+) `, ports[i]))
				sent := uint32(0)
				for _, m := range counts.FindAllStringSubmatch(logs, -1) {
					sent += uint32(must.Get(strconv.Atoi(m[1]))(t))
				}
				check.Equal(t, sent, s.probes(), fmt.Sprintf("target %d got %%d probes", i))
				names = strings.ReplaceAll(names, fmt.Sprintf(":%d\"", ports[i]), fmt.Sprintf(":P%d\"", i))
			}
			golden.Equal(t, "testdata/metrics", strings.ReplaceAll(names, host, "HOST"))
			if got := service.String(); !readiness.MatchString(got) {
				t.Errorf("the service manager got %q", got)
			}
		})
	}
}

// readiness is what the service manager gets.
var readiness = regexp.MustCompile(`^READY=1\nSTATUS=watching 6 targets on core \d+, 100 probes a second to each\n` +
	`(WATCHDOG=1\n)+STOPPING=1\n$`)

// A watch that cannot start says why, and which setting to change.
func TestRunFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	must.OK(t, os.WriteFile(file, []byte("udp:127.0.0.1:7\n"), 0o644))
	busy := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	for want, change := range map[string]func(*Options){
		"NOTIFY_SOCKET=x: want the path":                func(*Options) { t.Setenv("NOTIFY_SOCKET", "x") },
		"there is no target":                            func(o *Options) { o.Sources.List = "" },
		"no such file":                                  func(o *Options) { o.Sources.List += "x" },
		"keep.dir: mkdir " + file + ": not a directory": func(o *Options) { o.Dir = file },
		"-core 99999: this process may use only CPU":    func(o *Options) { o.Core = 99999 },
		"stats.listen: listen tcp":                      func(o *Options) { o.Listen = busy.Addr().String() },
	} {
		o := Options{Transport: "socket", Interval: time.Second, Core: -1, Log: slog.New(slog.DiscardHandler)}
		o.Sources.List, o.Sources.Defaults.Probes = file, targets.Probes{Interval: time.Second}
		change(&o)
		err := Run(t.Context(), o, nil, io.Discard)
		check.Fails(t, want, err, nil, want)
	}
}
