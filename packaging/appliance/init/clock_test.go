package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// The error about a clock that is not there names those that are.
func TestHardwareClocks(t *testing.T) {
	sys := t.TempDir()
	if text := hardwareClocks(sys); text != "this machine has no PTP hardware clock" {
		t.Errorf("%q", text)
	}
	for name, clock := range map[string]string{"ptp0": "52:54:00:12:34:57", "ptp1": "KVM virtual PTP"} {
		dir := filepath.Join(sys, "class/ptp", name)
		must.OK(t, os.MkdirAll(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "clock_name"), []byte(clock+"\n"), 0o644))
	}
	if text := hardwareClocks(
		sys); text != "this machine has /dev/ptp0, 52:54:00:12:34:57; /dev/ptp1, KVM virtual PTP" {
		t.Errorf("%q", text)
	}
}
