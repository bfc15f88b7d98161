package bench

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/programs"
)

// A third-party STAMP reflector, scapy's layers (Debian: python3-scapy), parses our probes with their TLVs, and its
// replies are accepted: it keeps sessions, and does not support TLVs.
func TestReflectorOfScapy(t *testing.T) {
	// Scapy 2.5 parses TLVs only below its own UDP header.
	if err := exec.Command("python3", "-c", "import scapy.contrib.stamp as s; s.STAMPSessionSenderTestUnauthenticated(bytes(44) + bytes([128, 3, 0, 0]))").Run(); err != nil {
		t.Skip("needs python3 with scapy 2.6 or later (package python3-scapy, from Debian 13)")
	}
	n := newNetwork(t)
	reflector := programs.Start(t, exec.Command("python3", "testdata/scapy_reflector.py", far4, "8620"), n.far.Do)
	if reflector.Ready != "ready\n" {
		t.Fatal(reflector.Ready)
	}
	rep, _ := n.measure(t, "-proto", "stamp", "-target", far4, "-port", "8620", "-count", "100", "-stamp-ssid", "7", "-stamp-tlv", "time+location+direct", "-clock-error", "5us")
	line, _ := reflector.Lines.ReadString('\n')
	if want := "ssid 7 Z 0 tlvs 3:80:4 2:80:"; !strings.HasPrefix(line, want) {
		t.Errorf("scapy reads %q, want %q...", line, want)
	}
	s := rep.STAMP
	if s == nil || !s.Stateful || s.ZeroSSID || rep.Counts.Received == 0 || rep.Counts.Corrupt != 0 || rep.Counts.Lost != 0 {
		t.Fatalf("%+v, %+v, notes %q", s, rep.Counts, rep.Notes)
	}
	for _, v := range s.TLVs {
		if v.Answered != 0 || v.Unrecognized == 0 {
			t.Errorf("%+v: a reflector without TLVs", v)
		}
	}
}
