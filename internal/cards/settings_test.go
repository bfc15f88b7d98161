package cards

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/must"
)

// Each setting that a row lists exists, and names that driver; drivers that answer in the kernel have none of a loop on
// a core.
func TestSettingsOfDrivers(t *testing.T) {
	var c Config
	table := setting.New(append(append(c.Settings(), c.DebugSettings()...),
		For([]setting.Setting{{Key: "cpu.priority", Doc: "Priority."}, {Key: "log.level", Doc: "Level."},
			{Key: "respond.handover", Doc: "Address."}, {Key: "respond.stamp_messages", Doc: "Messages."},
			{Key: "nic.down_limit", Doc: "Limit."}})...)...)
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

// Each driver that a row names uses the setting: its row in drivers.go passes on the driver's own settings, and the
// driver's package uses those of nic.Options.
func TestDriversReadTheirSettings(t *testing.T) {
	rows := must.Get(os.ReadFile("drivers.go"))(t)
	value := map[string]string{"nic.mac": "02:00:00:00:00:07", "nic.pin": "x", "nic.qkey": "7", "nic.ring_size": "64",
		"nic.mtu": "1400", "nic.push": "off", "nic.port": "2",
		"debug.link_mode": "3"}
	var c Config
	for _, s := range slices.Concat(c.Settings(), c.DebugSettings()) {
		// which driver, for package pci
		if s.Key == "nic.driver" || s.Key == "nic.device" || s.Key == "nic.unsafe_no_iommu" {
			continue
		}
		set := value[s.Key]
		if set == "" {
			if set = "1"; s.Kind == setting.Boolean {
				set = "true"
			}
		}
		var changed Config
		table := setting.New(slices.Concat(changed.Settings(), changed.DebugSettings())...)
		before := fields(reflect.ValueOf(changed), "")
		if err := table.Find(s.Key).Assign(set); err != nil {
			t.Fatalf("%s = %s: %v", s.Key, set, err)
		}
		field := ""
		for name, v := range fields(reflect.ValueOf(changed), "") {
			if v != before[name] {
				field = name
			}
		}
		if field == "" {
			t.Fatalf("%s = %s changes nothing", s.Key, set)
		}
		for _, d := range drivers {
			if !d.hasSetting(s.Key) {
				continue
			}
			if own, ok := strings.CutPrefix(field, "Options."); ok {
				if !uses(t, "../../nic/drivers/"+d.name, own) {
					t.Errorf("%s sets nic.Options.%s, which driver %s does not read", s.Key, own, d.name)
				}
				continue
			}
			_, row, _ := strings.Cut(string(rows), "name: \""+d.name+"\"")
			row, _, _ = strings.Cut(row, "name: \"")
			section := field
			if i := strings.LastIndex(field, "."); i > 0 { // XDP.Generic, or all of XDP
				section = field[:i]
			}
			if !strings.Contains(row, "c."+field) && !strings.Contains(row, "c."+section+")") &&
				!strings.Contains(row, "c."+section+"}") {
				t.Errorf("%s sets Config.%s, which the row of driver %s does not pass on", s.Key, field, d.name)
			}
		}
	}
}

// fields are the values of a struct's fields and of the structs' within, by their path.
func fields(v reflect.Value, at string) map[string]string {
	all := map[string]string{}
	for i := range v.NumField() {
		name := at + v.Type().Field(i).Name
		if f := v.Field(i); f.Kind() == reflect.Struct {
			maps.Copy(all, fields(f, name+"."))
		} else {
			all[name] = fmt.Sprint(f)
		}
	}
	return all
}

// uses reports whether a driver reads a field of its options, or of the card that package kit fills from them.
func uses(t *testing.T, dir, field string) bool {
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || files == nil {
		t.Fatalf("%s: %v", dir, err)
	}
	if field == "MTU" {
		field += "|MaxFrame" // which follows from it
	}
	read := regexp.MustCompile(`\b(o|Options|card)\.(` + field + `)\b`)
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && !strings.HasSuffix(file, "_test.go") && read.Match(text)
	})
}
