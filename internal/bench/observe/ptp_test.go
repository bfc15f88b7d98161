package observe

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// Responses of ptp4l 3.1.1 of Debian 12 on its port tpv1, by message: it follows a master over software timestamps.
var recorded = map[uint16]string{
	idCurrent: "0d0200480000000000000000000000000000000" +
		"03af460fffe64400f00000007047f000000000000000000010000020000010014200100010000000000190000" + "0000" +
		"00000a650000",
	idParent: "0d02005600000000000000000000000000000000" +
		"3af460fffe64400f00000007047f000000000000000000010000020000010022" +
		"2002ca7cd5fffe82047e00010000ffff7fffffff0af8feffff80ca7cd5fffe82047e",
	idTime: "0d02003a00000000000000000000000000000000" +
		"3af460fffe64400f00000007047f000000000000000000010000020000010006" + "2003002500a0",
	idPort: "0d02005000000000000000000000000000000000" +
		"3af460fffe64400f00010007047f00000000000000000001000002000001001c" +
		"20043af460fffe64400f000109000000000000000000010300010002",
	idProperties: "0d02004800000000000000000000000000000000" +
		"3af460fffe64400f00010007047f000000000000000000010000020000010014" + "c0043af460fffe64400f0001090004" +
		"7470763100",
}

// fake is a ptp4l that gives the recorded responses, in one domain.
type fake struct {
	answers     map[uint16][]byte
	sdo, domain byte
	silent      uint16 // this message gets no response
}

func newFake(t testing.TB) *fake {
	f := &fake{answers: map[uint16][]byte{}}
	for id, text := range recorded {
		b := must.Get(hex.DecodeString(text))(t)
		must.Equal(t, int(binary.BigEndian.Uint16(b[2:])), len(b), "a recorded message's length is %d")
		f.answers[id] = b
	}
	return f
}

func (f *fake) data(id uint16) []byte { return f.answers[id][tlvData:] }

func (f *fake) hardware() *fake {
	f.data(idProperties)[11] = 1
	f.data(idTime)[2] = 8 // PTP timescale
	return f
}

func (f *fake) accurate(to byte) *fake { f.data(idParent)[20] = to; return f }

func (f *fake) serve(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "ptp4l")
	c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUnix(b)
			if err != nil {
				return
			}
			id := binary.BigEndian.Uint16(b[managementSize+4:])
			seq := hex.EncodeToString(b[sourcePort+10:][:2])
			if got, want := hex.EncodeToString(b[:n]), fmt.Sprintf("%02x020036%02x000000000000000000000000000000000000"+
				"00000000000001%s047fffffffffffffffffffff0000000000010002%04x", b[0], b[4], seq, id); got != want {
				t.Errorf("a request is %s, want %s", got, want)
			}
			if b[0]>>4 > 1 || b[4] > 127 {
				t.Errorf("majorSdoId %d, domain %d", b[0]>>4, b[4])
			}
			if n != tlvData || b[4] != f.domain || b[0] != f.sdo<<4|typeManagement || id == f.silent {
				continue
			}
			a := bytes.Clone(f.answers[id])
			a[0], a[4] = b[0], b[4]
			copy(a[sourcePort+10:], b[sourcePort+10:][:2])
			c.WriteToUnix(a, from)
		}
	}()
	return path
}

func TestPTP(t *testing.T) {
	defer func(was time.Duration) { patience = was }(patience)
	// A busy machine may delay the thread that responds here.
	patience = 3 * time.Second
	const path = 2661 // 00000a65h
	phc := hardwareClock{name: "/dev/ptp3", ahead: 37*time.Second - 40, window: 101}
	for _, c := range []struct {
		name, wrong string
		f           func(*fake)
		want        time.Duration
		says        string
	}{
		{name: "no accuracy", wrong: "grandmaster does not report its accuracy (clockAccuracy FEh), so the system's clock's own error is unknown"},
		{name: "software", f: func(f *fake) { f.accurate(0x21) }, want: 25 + path + 100, says: "25ns off its master, path of 2.661µs; grandmaster accurate to 100ns"},
		{name: "behind", f: func(f *fake) { f.accurate(0x23); binary.BigEndian.PutUint64(f.data(idCurrent)[2:], 0xFFFFFFFFFFF00000) }, want: 16 + path + 1000},
		{name: "hardware", f: func(f *fake) { f.hardware().accurate(0x20) }, want: 25 + path + 40 + 51 + 25, says: "system's clock 40ns ± 51ns from /dev/ptp3 of tpv1"},
		{name: "hardware, master unknown", f: func(f *fake) { f.hardware() }, wrong: "/dev/ptp3's own error is unknown"},
		{name: "PHC of another scale", f: func(f *fake) { f.hardware().accurate(0x20); f.data(idTime)[2] = 0 }, wrong: "which ptp4l sets: nothing (phc2sys) synchronises the two"},
		{name: "peer delay", f: func(f *fake) {
			f.accurate(0x21)
			clear(f.data(idCurrent)[10:18])
			binary.BigEndian.PutUint64(f.data(idPort)[12:], 300<<16|1)
		}, want: 25 + 301 + 100},
		{name: "boundary clocks", f: func(f *fake) { f.accurate(0x21); f.data(idCurrent)[1] = 3 }, wrong: "the error of the 2 boundary clocks on the path"},
		{name: "not calibrated", f: func(f *fake) { f.accurate(0x21); f.data(idProperties)[10] = 8 }, wrong: "no port follows a master"},
		{name: "grandmaster", f: func(f *fake) {
			f.accurate(0x21)
			clear(f.data(idCurrent)[:18])
			f.data(idProperties)[10] = 6
		}, want: 100},
		{name: "nothing", f: func(f *fake) { f.data(idCurrent)[1] = 0; f.data(idProperties)[10] = 4 }, wrong: "no port is a master"},
		{name: "domain 24", f: func(f *fake) { f.accurate(0x21); f.domain = 24 }, want: 25 + path + 100},
		{name: "802.1AS, domain 127", f: func(f *fake) { f.accurate(0x21); f.sdo, f.domain = 1, 127 }, want: 25 + path + 100},
		{name: "another standard", f: func(f *fake) { f.sdo = 2 }, wrong: "it does not answer in any domain: no answer"},
		{name: "no interface told", f: func(f *fake) { f.silent = idProperties }, wrong: "management message C004h: no answer"},
		{name: "refused", f: func(f *fake) { f.answers[idParent][managementSize+1] = 2 }, wrong: "2002h was refused"},
		{name: "short", f: func(f *fake) {
			b := f.answers[idParent][:tlvData+10]
			b[managementSize+3] = 12
			f.answers[idParent] = b
		}, wrong: "2002h: 10 bytes, expected 32"},
		{name: "length", f: func(f *fake) { f.answers[idTime][managementSize+3] = 60 }, wrong: "a length of 60 in 58 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			if c.f != nil {
				c.f(f)
			}
			b, err := queryPTP(f.serve(t), func(iface string) (hardwareClock, error) {
				if iface != "tpv1" {
					t.Errorf("the clock of %q was asked for", iface)
				}
				return phc, nil
			})
			if c.wrong != "" {
				check.Fails(t, c.name, err, nil, c.wrong)
			} else if err != nil || b.Error != c.want || !strings.Contains(b.Source, c.says) {
				t.Errorf("%d (%s), %v, want %d", b.Error, b.Source, err, c.want)
			}
		})
	}
	check.Fails(t, "no socket", check.Err(queryPTP(filepath.Join(t.TempDir(), "none"), nil)), nil, "no ptp4l")
	noPHC := func(string) (hardwareClock, error) { return phc, errNoPHC }
	check.Fails(t, "no PHC", check.Err(queryPTP(newFake(t).hardware().serve(t), noPHC)), errNoPHC)
}

// The accuracy of each code of a grandmaster, by the tables of IEEE 1588-2008 and -2019.
func TestAccuracies(t *testing.T) {
	var all []string
	for code := 0x16; code <= 0x32; code++ {
		if b, err := (&ptp{accuracy: byte(code), software: true, steps: 1}).bound(hardwareClock{}); err == nil {
			all = append(all, fmt.Sprintf("%X %v", code, b.Error))
		}
	}
	check.Equal(t, strings.Join(all, ", "), "17 1ns, 18 1ns, 19 1ns, 1A 1ns, 1B 1ns, 1C 1ns, 1D 1ns, 1E 3ns, 1F 10ns, "+
		"20 25ns, 21 100ns, 22 250ns, 23 1µs, 24 2.5µs, 25 10µs, 26 25µs, 27 100µs, 28 250µs, 29 1ms, 2A 2.5ms, 2B 10ms, "+
		"2C 25ms, 2D 100ms, 2E 250ms, 2F 1s, 30 10s", "%s")
}

func TestNearest(t *testing.T) {
	at := func(ns int64) unix.PtpClockTime { return unix.PtpClockTime{Sec: ns / 1e9, Nsec: uint32(ns % 1e9)} }
	triple := func(a, b, c int64) [3]unix.PtpClockTime { return [3]unix.PtpClockTime{at(a), at(b), at(c)} }
	ahead, window, err := nearest([][3]unix.PtpClockTime{triple(1000, 9000, 3000), triple(5e9-100, 5e9+50, 5e9+100),
		triple(7000, 1, 6000)})
	if err != nil || ahead != 50 || window != 200 {
		t.Errorf("%d, %d, %v", ahead, window, err)
	}
	_, _, err = nearest([][3]unix.PtpClockTime{triple(7000, 1, 6000)})
	check.Fails(t, "a clock that went backwards", err, nil)
	check.Fails(t, "lo", check.Err(readPHC("lo")), errNoPHC)
}

// Debian's ptp4l, as a grandmaster and as a slave, reports the same to this package as to pmc.
func TestPTP4L(t *testing.T) {
	program, err := exec.LookPath("ptp4l")
	if err != nil {
		program = "/usr/sbin/ptp4l"
		if _, err := os.Stat(program); err != nil {
			t.Skip("no ptp4l (apt-get install linuxptp)")
		}
	}
	needs.Root(t, "network namespaces")
	const far, near = "rebound-ptp-a", "rebound-ptp-b"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for i, ns := range []string{far, near} {
		exec.Command("ip", "netns", "del", ns).Run() // left by a test that was killed
		ip("netns", "add", ns)
		t.Cleanup(func() { ip("netns", "del", ns) })
		if i == 1 {
			ip("link", "add", "tpv", "netns", far, "type", "veth", "peer", "name", "tpv", "netns", near)
		}
	}
	dir := t.TempDir()
	for i, ns := range []string{far, near} {
		ip("-n", ns, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", "tpv")
		ip("-n", ns, "link", "set", "tpv", "up")
		config := filepath.Join(dir, ns+".conf")
		// ptp4l uses the servo's constants only if both are set.
		text := "[global]\ntime_stamping software\ndomainNumber 24\nlogAnnounceInterval -2\nlogSyncInterval -3\nlogMinDelayReqInterval -3\n" +
			"pi_proportional_const 0.7\npi_integral_const 0.3\nsanity_freq_limit 0\nstep_threshold 0.0\nfirst_step_threshold 0.0\nuds_address " + filepath.Join(dir, ns) + "\n"
		if i == 0 {
			text += "free_running 1\npriority1 10\nclockAccuracy 0x22\n"
		} else {
			text += "slaveOnly 1\n"
		}
		must.OK(t, os.WriteFile(config, []byte(text), 0o600))
		// Without the privilege to set the clock it continues, and both share this machine's clock.
		cmd := exec.Command("ip", "netns", "exec", ns, "setpriv", "--bounding-set", "-sys_time", "--inh-caps",
			"-sys_time", program, "-f", config, "-i", "tpv", "-m", "-q")
		var log strings.Builder
		cmd.Stdout, cmd.Stderr = &log, &log
		must.OK(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Signal(unix.SIGTERM)
			cmd.Wait()
			if t.Failed() {
				t.Logf("ptp4l in %s: %s", ns, log.String()[max(0, log.Len()-2000):])
			}
		})
	}
	for _, c := range []struct {
		ns    string
		least time.Duration
	}{{far, 250}, {near, 251}} {
		var b Bound
		var err error
		await.Holds(func() bool {
			b, err = queryPTP(filepath.Join(dir, c.ns), readPHC)
			return err == nil
		})
		if err != nil || b.Error < c.least || c.ns == far && b.Error != c.least ||
			!strings.Contains(b.Source, "grandmaster accurate to 250ns") {
			t.Errorf("%s: %v, %v", c.ns, b, err)
		}
		t.Logf("%s: %v: %s", c.ns, b.Error, b.Source)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/run/rebound-ptp-%d-*", os.Getpid())); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// What ptp4l says wrong: each field of a response that decides whether it is the answer, at its limits.
func TestAnswerFields(t *testing.T) {
	good := must.Get(hex.DecodeString(recorded[idTime]))(t)
	binary.BigEndian.PutUint16(good[sourcePort+10:], 7)
	n := len(good) - tlvData
	for _, c := range []struct {
		name string
		edit func(b []byte) []byte
		is   error  // errOther
		says string // of another error
		data int
	}{
		{"as recorded", func(b []byte) []byte { return b }, nil, "", n},
		{"with bytes behind it", func(b []byte) []byte { return append(b, 1, 2) }, nil, "", n},
		{"without data", func(b []byte) []byte { b[managementSize+3] = 2; return b[:tlvData] }, nil, "", 0},
		{"a byte short of that", func(b []byte) []byte { b[managementSize+3] = 2; return b[:tlvData-1] }, errOther, "", 0},
		{"a byte of data short", func(b []byte) []byte { return b[:len(b)-1] }, nil, "a length of 6 in 57 bytes", 0},
		{"a length below the number", func(b []byte) []byte { b[managementSize+3] = 1; return b }, nil, "a length of 1", 0},
		{"another message", func(b []byte) []byte { b[0] ^= 1; return b }, errOther, "", 0},
		{"a type with other bits above", func(b []byte) []byte { b[0] ^= 0xf0; return b }, nil, "", n},
		{"another number", func(b []byte) []byte { b[sourcePort+11] ^= 1; return b }, errOther, "", 0},
		{"another action", func(b []byte) []byte { b[offAction] ^= 1; return b }, errOther, "", 0},
		{"an action with other bits above", func(b []byte) []byte { b[offAction] ^= 0xf0; return b }, nil, "", n},
		{"an error", func(b []byte) []byte { b[managementSize+1] = 2; return b }, nil, "2003h was refused", 0},
		{"another identifier", func(b []byte) []byte { b[managementSize+5] ^= 1; return b }, errOther, "", 0},
	} {
		a, err := parse(c.edit(slices.Clone(good)), idTime, 7)
		switch {
		case c.is != nil || c.says != "":
			check.Fails(t, c.name, err, c.is, c.says)
		case err != nil || len(a.data) != c.data:
			t.Errorf("%s: %d bytes, %v; want %d", c.name, len(a.data), err, c.data)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for id, text := range recorded {
		b, _ := hex.DecodeString(text)
		f.Add(b, id)
	}
	f.Fuzz(func(t *testing.T, b []byte, id uint16) {
		if a, err := parse(b, id, 0); err == nil && len(a.data) > len(b)-tlvData {
			t.Errorf("%d bytes of data in %d", len(a.data), len(b))
		}
	})
}
