package bench

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A third-party STAMP reflector, scapy's layers (Debian: python3-scapy), parses our probes with their TLVs, and its
// replies are accepted: it keeps sessions, and does not support TLVs.
func TestReflectorOfScapy(t *testing.T) {
	// Scapy 2.5 parses TLVs only below its own UDP header.
	if err := exec.Command("python3", "-c", "import scapy.contrib.stamp as s; s.STAMPSessionSenderTestUnauthenticated(bytes(44) + bytes([128, 3, 0, 0]))").Run(); err != nil {
		t.Skip("needs python3 with scapy 2.6 or later (package python3-scapy, from Debian 13)")
	}
	n := newNetwork(t)
	c := exec.Command("python3", "testdata/scapy_reflector.py", far4, "8620")
	out, err := c.StdoutPipe()
	n.must(err)
	var said strings.Builder
	c.Stderr = &said
	n.must(n.far.Do(c.Start))
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	dir := filepath.Join(t.TempDir(), "r")
	r := n.bench(quick("-proto", "stamp", "-target", far4, "-port", "8620", "-count", "100", "-stamp-ssid", "7", "-stamp-tlv", "time+location+direct",
		"-clock-error", "5us", "-out", dir)...)
	rep := read(t, dir, r)
	line, _ := lines.ReadString('\n')
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
