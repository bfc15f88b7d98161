package responder

import (
	"os/exec"
	"strings"
	"testing"
)

// scapy, an independent STAMP sender (Debian: python3-scapy), decodes our replies as expected: sequence numbers,
// timestamp and error estimate, the session identifier, and TLVs with the flags of RFC 8972 §4.
func TestSTAMPByScapy(t *testing.T) {
	// Scapy 2.5 reads TLVs only below its own UDP header.
	if err := exec.Command("python3", "-c", "import scapy.contrib.stamp as s; s.STAMPSessionSenderTestUnauthenticated(bytes(44) + bytes([128, 3, 0, 0]))").Run(); err != nil {
		t.Skip("needs python3 with scapy 2.6 or later (package python3-scapy, from Debian 13)")
	}
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp", "respond.stamp_mode=stateful", "respond.stamp_tlvs=true", "respond.stamp_clock_error=3us")
	for _, to := range []string{ours4, ours6} {
		var out []byte
		w.there.do(t, func() { out, _ = exec.Command("python3", "testdata/scapy_sender.py", to, "862").CombinedOutput() })
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != 3 {
			t.Fatalf("%s: %s", to, out)
		}
		for i, line := range lines {
			n := string(rune('0' + i))
			// A wrong length ends the processing: that TLV has flag M, and the ones before it were answered.
			want := "len 0 seq " + n + " sender 10" + n + " ssid 7 S 1 Z 0 theirs 1 3 5 same-time True ttl 64 tlvs 1:00:12 3:00:4 5:00:12 200:80:4 3:40:3"
			if line != want {
				t.Errorf("%s: scapy reads\n%s, want\n%s", to, line, want)
			}
		}
	}
}
