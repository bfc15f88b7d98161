package endtoend

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/numbers"
	"github.com/rebound-nic/rebound/proof/programs"
)

func keyFile(t *testing.T) string {
	t.Helper()
	b := make([]byte, 32)
	rand.Read(b)
	path := filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(path, []byte(hex.EncodeToString(b)), 0o600))
	return path
}

// TestReflector measures a responder with sessions, HMACs and TLVs: every TLV is answered, one-way delays have the
// error bound of both clocks, and nothing is measured without the right key.
func TestReflector(t *testing.T) {
	n := newNetwork(t)
	key := keyFile(t)
	n.startResponder(t, "afpacket", "10.98.0.3/24", "fd98::3/64", "respond.stamp_mode=stateful",
		"respond.stamp_auth_ports=863", "respond.stamp_key="+key,
		"respond.stamp_tlvs=true", "respond.stamp_dscp=10", "respond.stamp_clock_error=3us")
	const all = "time+location+followup+direct+cos:10+access:1:1"
	for name, c := range map[string]struct {
		args []string
		tlvs int
		mode string
	}{
		"plain":            {[]string{"-target", "10.98.0.3"}, 0, "unauthenticated"},
		"TLVs":             {[]string{"-target", "fd98::3", "-stamp-ssid", "7", "-stamp-tlv", all, "-size", "400", "-dscp", "46"}, 6, "unauthenticated"},
		"TLVs with HMAC":   {[]string{"-target", "10.98.0.3", "-stamp-mode", "unauthenticated", "-stamp-key", key, "-stamp-tlv", all + "+hmac", "-transport", "socket"}, 6, "unauthenticated"},
		"sealed":           {[]string{"-target", "fd98::3", "-port", "863", "-stamp-key", key, "-rate", "2k"}, 0, "authenticated"},
		"sealed with TLVs": {[]string{"-target", "10.98.0.3", "-port", "863", "-stamp-key", key, "-stamp-tlv", all, "-size", "500"}, 6, "authenticated"},
	} {
		t.Run(name, func(t *testing.T) {
			rep, r := n.measure(t, append([]string{"-proto", "stamp", "-count", "50", "-clock-error", "5us"},
				c.args...)...)
			s := rep.STAMP
			if s == nil || !s.Stateful || s.Mode != c.mode || s.ZeroSSID || len(s.TLVs) != c.tlvs {
				t.Fatalf("%+v, notes %q", s, rep.Notes)
			}
			replies := rep.Counts.Received + rep.Counts.Late
			for _, v := range s.TLVs {
				if v.Answered != replies || len(v.Answers) == 0 {
					t.Errorf("%+v of %d replies", v, replies)
				}
			}
			if there, back := rep.Counts.LostForward, rep.Counts.LostBackward; there == nil || back == nil {
				t.Error("loss is not told by direction")
			}
			if !s.OneWay.Known() || s.OneWay.Near.NS != 5000 || s.OneWay.Far.NS < 3000 || s.OneWay.Far.NS > 3100 ||
				s.OneWay.ErrorNS != s.OneWay.Near.NS+s.OneWay.Far.NS {
				t.Errorf("%+v", s.OneWay)
			}
			for _, name := range []string{latency.ThereSeries, latency.BackSeries} {
				if w := rep.Find(name); w == nil || w.Total.Count == 0 || w.Total.Quantile(0.5) > rep.Main().Total.Max {
					t.Errorf("%s: %+v", name, w)
				}
				r.prints(t, strings.ReplaceAll(name, "_", " ")+" ± 8.0")
			}
			if strings.Contains(name, "TLVs") {
				check.Contains(t, strings.Join(rep.Notes, "\n"), "TLV location: ")
			}
		})
	}
	t.Run("another key", func(t *testing.T) {
		r := n.bench("run", "-self-test", "0s", "-warmup", "0s", "-timeout", "200ms", "-target", "10.98.0.3", "-proto",
			"stamp", "-port", "863", "-stamp-key", keyFile(t),
			"-count", "3", "-out", filepath.Join(t.TempDir(), "r"))
		r.fails(t, 1, "no usable reply",
			"a reflector is silent if its key differs: compare -stamp-key with the reflector's (respond.stamp_key)")
	})
	t.Run("no reflector", func(t *testing.T) {
		r := n.bench("run", "-self-test", "0s", "-warmup", "0s", "-timeout", "200ms", "-target", "10.98.0.3", "-proto",
			"stamp", "-port", "999", "-count", "3",
			"-out", filepath.Join(t.TempDir(), "r"))
		r.fails(t, 1, "no usable reply", "by stamp", "none answered within 200.0 ms", "-set respond.stamp_ports=999")
		for _, f := range numbers.Others(r.errors, nil) {
			t.Error(f)
		}
	})
	t.Run("no clock's error", func(t *testing.T) {
		rep, r := n.measure(t, "-target", "10.98.0.3", "-proto", "stamp", "-count", "20")
		if o := rep.STAMP.OneWay; o.Known() != (rep.Find(latency.ThereSeries) != nil) || o.Known() != (o.ErrorNS > 0) ||
			o.Known() == strings.Contains(r.out, "no one-way delays: ") {
			t.Errorf("%+v\n%s", o, r.out)
		}
	})
}

// A third-party STAMP reflector, scapy's layers (Debian: python3-scapy), parses our probes with their TLVs, and its
// replies are accepted: it keeps sessions, and does not support TLVs.
func TestReflectorOfScapy(t *testing.T) {
	// Scapy 2.5 parses TLVs only below its own UDP header.
	if err := exec.Command("python3", "-c",
		"import scapy.contrib.stamp as s; s.STAMPSessionSenderTestUnauthenticated(bytes(44) + bytes([128, 3, 0, 0]))").Run(); err != nil {
		t.Skip("needs python3 with scapy 2.6 or later (package python3-scapy, from Debian 13)")
	}
	n := newNetwork(t)
	reflector := programs.Start(t, exec.Command("python3", "testdata/scapy_reflector.py", far4, "8620"), n.far.Do)
	if reflector.Ready != "ready\n" {
		t.Fatal(reflector.Ready)
	}
	rep, _ := n.measure(t, "-proto", "stamp", "-target", far4, "-port", "8620", "-count", "100", "-stamp-ssid", "7",
		"-stamp-tlv", "time+location+direct", "-clock-error", "5us")
	line, _ := reflector.Lines.ReadString('\n')
	if want := "ssid 7 Z 0 tlvs 3:80:4 2:80:"; !strings.HasPrefix(line, want) {
		t.Errorf("scapy reads %q, want %q...", line, want)
	}
	s := rep.STAMP
	if s == nil || !s.Stateful || s.ZeroSSID || rep.Counts.Received == 0 || rep.Counts.Corrupt != 0 ||
		rep.Counts.Lost != 0 {
		t.Fatalf("%+v, %+v, notes %q", s, rep.Counts, rep.Notes)
	}
	for _, v := range s.TLVs {
		if v.Answered != 0 || v.Unrecognized == 0 {
			t.Errorf("%+v: a reflector without TLVs", v)
		}
	}
}
