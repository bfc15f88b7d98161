package bench

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/must"
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
	n.startResponder(t, "afpacket", "10.98.0.3/24", "fd98::3/64", "respond.stamp_mode=stateful", "respond.stamp_auth_ports=863", "respond.stamp_key="+key,
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
			rep, r := n.measure(t, append([]string{"-proto", "stamp", "-count", "50", "-clock-error", "5us"}, c.args...)...)
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
			if !s.OneWay.Known() || s.OneWay.Near.NS != 5000 || s.OneWay.Far.NS < 3000 || s.OneWay.Far.NS > 3100 || s.OneWay.ErrorNS != s.OneWay.Near.NS+s.OneWay.Far.NS {
				t.Errorf("%+v", s.OneWay)
			}
			for _, name := range []string{latency.ThereSeries, latency.BackSeries} {
				if w := rep.Find(name); w == nil || w.Total.Count == 0 || w.Total.Quantile(0.5) > rep.Main().Total.Max {
					t.Errorf("%s: %+v", name, w)
				}
				if !strings.Contains(r.out, strings.ReplaceAll(name, "_", " ")+" ± 8.0") {
					t.Errorf("%s is not printed with its error:\n%s", name, r.out)
				}
			}
			if strings.Contains(name, "TLVs") && !strings.Contains(strings.Join(rep.Notes, "\n"), "TLV location: ") {
				t.Errorf("%q", rep.Notes)
			}
		})
	}
	t.Run("another key", func(t *testing.T) {
		r := n.bench("run", "-self-test", "0s", "-warmup", "0s", "-timeout", "200ms", "-target", "10.98.0.3", "-proto", "stamp", "-port", "863", "-stamp-key", keyFile(t),
			"-count", "3", "-out", filepath.Join(t.TempDir(), "r"))
		if r.code != 1 || !strings.Contains(r.errors, "no usable reply") ||
			!strings.Contains(r.errors, "a reflector is silent if its key differs: compare -stamp-key with the reflector's (respond.stamp_key)") {
			t.Error(r)
		}
	})
	t.Run("no clock's error", func(t *testing.T) {
		rep, r := n.measure(t, "-target", "10.98.0.3", "-proto", "stamp", "-count", "20")
		if o := rep.STAMP.OneWay; o.Known() != (rep.Find(latency.ThereSeries) != nil) || o.Known() != (o.ErrorNS > 0) || o.Known() == strings.Contains(r.out, "no one-way delays: ") {
			t.Errorf("%+v\n%s", o, r.out)
		}
	})
}
