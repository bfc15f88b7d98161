package cards

import (
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// Each setting that a row lists exists, and names that driver; drivers that answer in the kernel have none of a loop on a core.
func TestSettingsOfDrivers(t *testing.T) {
	var c Config
	table := setting.New(append(append(c.Settings(), c.DebugSettings()...), For([]setting.Setting{{Key: "cpu.priority", Doc: "Priority."}, {Key: "log.level", Doc: "Level."},
		{Key: "respond.handover", Doc: "Address."}, {Key: "respond.stamp_messages", Doc: "Messages."}})...)...)
	for _, d := range drivers {
		for _, key := range d.has {
			if s := table.Find(key); s == nil || !slices.Contains(s.Drivers, d.name) {
				t.Errorf("driver %s lists %s, which is %+v", d.name, key, s)
			}
		}
		if len(d.push) > 0 && !slices.Contains(d.has, "nic.push") {
			t.Errorf("driver %s has values of nic.push, and does not list it", d.name)
		}
	}
	for key, want := range map[string]string{
		"nic.pin":             "[xdp] ",
		"nic.generic_xdp":     "[afxdp, xdp] ",
		"nic.unsafe_no_iommu": "[drivers on the device] ",
		"cpu.priority":        "[not xdp] Priority.",
		"log.level":           "Level.",
	} {
		if s := table.Find(key); !strings.HasPrefix(s.Doc, want) {
			t.Errorf("%s is described as %q, want %q first", key, s.Doc, want)
		}
	}
}
