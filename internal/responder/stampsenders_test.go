package responder

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// scapy, an independent STAMP sender (Debian: python3-scapy), decodes our replies as expected: sequence numbers,
// timestamp and error estimate, the session identifier, and TLVs with the flags of RFC 8972 §4.
func TestSTAMPByScapy(t *testing.T) {
	// Scapy 2.5 reads TLVs only below its own UDP header.
	if err := exec.Command("python3", "-c",
		"import scapy.contrib.stamp as s; s.STAMPSessionSenderTestUnauthenticated(bytes(44) + bytes([128, 3, 0, 0]))").Run(); err != nil {
		t.Skip("needs python3 with scapy 2.6 or later (package python3-scapy, from Debian 13)")
	}
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp", "respond.stamp_mode=stateful", "respond.stamp_tlvs=true",
		"respond.stamp_clock_error=3us")
	for _, to := range []string{ours4, ours6} {
		out, want := w.run(t, "python3", "testdata/scapy_sender.py", to, "862"), ""
		for _, n := range []string{"0", "1", "2"} {
			// A wrong length ends the processing: that TLV has flag M, and the ones before it were answered.
			want += "len 0 seq " + n + " sender 10" + n +
				" ssid 7 S 1 Z 0 theirs 1 3 5 same-time True ttl 64 tlvs 1:00:12 3:00:4 5:00:12 200:80:4 3:40:3\n"
		}
		check.Equal(t, out, want, to+": scapy reads\n%s")
	}
}

// The authenticated mode with an independent sender that shares no layout and no HMAC with our code (Debian: python3):
// it accepts our replies as authentic, and gets none for a packet with a changed bit in any field, or for a truncated
// one.
func TestSTAMPAuthenticatedByPython(t *testing.T) {
	if err := exec.Command("python3", "-c", "import hashlib, hmac, socket, struct").Run(); err != nil {
		t.Skip("needs python3 (package python3)")
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	key, file := hex.EncodeToString(raw), filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(file, []byte(key), 0o600))
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp", "respond.stamp_mode=stateful", "respond.stamp_auth_ports=863",
		"respond.stamp_key="+file)
	for _, to := range []string{ours4, ours6} {
		out, want := w.run(t, "python3", "testdata/stamp_auth.py", to, "863", key), ""
		// the session's own numbers: an unauthenticated packet does not consume one
		for _, n := range []string{"0", "1"} {
			want += "number " + n + " sender 10" + n +
				" time True error 8305 ttl 64 zeros True order True HMAC True changed-HMAC False\n"
		}
		check.Equal(t, out, want, to+": python reads\n%s")
	}
}

// A TWAMP-Light and STAMP sender that others wrote, Nokia's twampy (BSD licence, not in Debian), loses nothing and
// takes our times for ones of a clock like its own. Its smallest packets, of 14 bytes, would draw a longer reply and
// are refused; 27 bytes of padding make room (RFC 5357 §4.2.1).
func TestSTAMPByTwampy(t *testing.T) {
	needs.Programs(t, "twampy")
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp")
	for _, to := range []string{ours4, ours6} {
		for _, padding := range []string{"27", "300"} {
			near := map[string]string{ours4: ":20000", ours6: "[::]:20000"}[to]
			out, _, _ := w.there.outcome(t, exec.Command("twampy", "sender", net.JoinHostPort(to, "862"), near, "-c",
				"10", "-i", "100", "--padding", padding))
			// a negative or absurd delay is a wrong time
			for _, way := range []string{"Outbound", "Inbound", "Roundtrip"} {
				if !regexp.MustCompile(way + `: +[0-9.]+[um]s +[0-9.]+[um]s .* 0\.0%`).MatchString(out) {
					t.Errorf("%s, padding %s: %s is not as it should be:\n%s", to, padding, way, out)
				}
			}
		}
	}
}
