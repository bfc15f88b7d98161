package settings

import (
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// Each row is a flag and a key of -ab, with help that names its value, and names itself in what it refuses.
func TestRows(t *testing.T) {
	var s Settings
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	s.Flags(fs)
	free := []string{"iface", "target", "stamp-tlv"} // any text may be one, as far as a row knows
	for _, r := range Rows {
		f := fs.Lookup(r.Name)
		if f == nil {
			t.Errorf("-%s is no flag", r.Name)
			continue
		}
		if name, _ := flag.UnquoteUsage(f); name == "value" && r.Values == nil {
			t.Errorf("-%s: its help names no value: %q", r.Name, f.Usage)
		}
		for _, v := range r.Values {
			if err := s.Set(r.Name, v); err != nil {
				t.Errorf("-%s %s is completed, and refused: %v", r.Name, v, err)
			}
		}
		if err := s.Set(r.Name, "?"); err == nil && !strings.Contains(strings.Join(free, " "), r.Name) {
			t.Errorf("-%s ? is taken", r.Name)
		}
	}
	if err := s.Set("dscp", "64"); err == nil || err.Error() != `dscp "64": want 0 to 63` {
		t.Errorf("dscp 64 gives %v", err)
	}
	if err := s.Set("what", "1"); err == nil || !strings.Contains(err.Error(), "-ab takes do, name, target, proto,") {
		t.Errorf("an unknown setting gives %v", err)
	}
}

// A key of a file has the range of the flag, and 0 for the default.
func TestInteger(t *testing.T) {
	var ttl int
	table := setting.New(Integer("probe.ttl", &ttl, "ttl"))
	if doc := table.Settings[0].Doc; doc != "TTL or hop limit of the probes, 1 to 255; 0 is 64." {
		t.Errorf("documented as %q", doc)
	}
	for value, want := range map[string]string{"0": "", "255": "", "256": "-set: probe.ttl: 256 is not 0 to 255", "-1": "-set: probe.ttl: -1 is not 0 to 255"} {
		err := table.Set("probe.ttl=" + value)
		if err == nil {
			err = table.Apply()
		}
		if got := ""; err != nil {
			if got = err.Error(); got != want {
				t.Errorf("ttl = %s gives %q, want %q", value, got, want)
			}
		} else if want != "" {
			t.Errorf("ttl = %s is taken", value)
		}
	}
}
