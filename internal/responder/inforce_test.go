package responder

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/must"
)

const (
	ofSockets = "nic.push nic.push_max nic.port nic.qkey nic.unsafe_no_iommu"
	ofDebug   = "debug.host_version debug.os_type debug.vector debug.omit_meta debug.skip_eeprom_check debug.link_mode debug.no_steering"
	ofKernel  = "nic.queue nic.generic_xdp nic.pin nic.down_limit"
	messages  = "respond.handover respond.stamp_messages"
	enaDebug  = "debug.host_version debug.os_type debug.vector debug.omit_meta"
)

// notInForce lists the settings that each driver ignores, independently of the table's rows.
var notInForce = map[string]string{
	"afpacket": ofSockets + " nic.queue nic.generic_xdp nic.pin " + ofDebug + " " + messages,
	"afxdp":    ofSockets + " nic.pin " + ofDebug + " " + messages,
	"xdp": ofSockets + " nic.queue nic.ring_size nic.mtu cpu.cores cpu.priority cpu.realtime_guard cpu.isolate cpu.lock_memory respond.stamp_mode " +
		"respond.stamp_sessions respond.stamp_idle respond.stamp_auth_ports respond.stamp_key respond.stamp_tlvs respond.stamp_timing respond.stamp_location respond.stamp_dscp " +
		"respond.stamp_clock_error " + ofDebug + " " + messages,
	"ixgbe": "nic.push nic.push_max nic.port nic.qkey " + ofKernel + " " + enaDebug + " " + messages,
	"mlx5":  "nic.port nic.qkey " + ofKernel + " " + enaDebug + " debug.skip_eeprom_check debug.link_mode " + messages,
	"mlx4":  "nic.qkey " + ofKernel + " " + enaDebug + " debug.skip_eeprom_check debug.link_mode " + messages,
	"ena":   "nic.port nic.qkey " + ofKernel + " debug.skip_eeprom_check debug.link_mode debug.no_steering " + messages,
	"efa": "nic.port nic.mac " + ofKernel +
		" respond.addresses respond.udp_ports respond.vlans respond.stamp_ports respond.stamp_auth_ports guard.checksum_bytes guard.loop " +
		ofDebug,
	"virtio": "nic.push nic.push_max nic.port nic.qkey " + ofKernel + " " + ofDebug + " " + messages,
}

// values are test values of settings, if the type is not enough to choose one.
var values = map[string]string{
	"nic.ring_size": "64", "nic.mtu": "1400", "nic.mac": "02:00:00:00:00:07", "nic.pin": "name", "nic.down_limit": "5s",
	"nic.qkey": "7", "debug.host_version": "1", "debug.os_type": "2",
	"debug.link_mode": "3", "respond.addresses": "10.0.0.9", "respond.vlans": "5", "respond.handover": "127.0.0.1:9",
	"trust.user":         "root",
	"respond.stamp_idle": "5s", "respond.stamp_dscp": "3", "respond.stamp_clock_error": "1us", "log.level": "debug",
	"stats.listen": "127.0.0.1:0",
	"stats.hosts":  "a.example", "stats.interval": "5s", "stats.report": "out/x", "respond.udp_ports": "8",
	"respond.stamp_ports": "862", "respond.stamp_auth_ports": "863",
}

// other returns a value of a setting other than its default.
func other(t *testing.T, s *setting.Setting) string {
	if v, ok := values[s.Key]; ok {
		return v
	}
	if all := s.Values(); all != nil {
		i := slices.IndexFunc(all, func(v string) bool { return v != strings.Trim(s.Default, `"`) })
		return all[i]
	}
	if s.Kind != setting.Integer && s.Kind != setting.Integers {
		t.Errorf("%s: this test has no value for it", s.Key)
	}
	return "2"
}

// Each setting has an effect with each driver, or it is named by an error or by the warning at start. It is also named
// if a setting that it needs is missing.
func TestSettingsInForce(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(key, []byte(strings.Repeat("5a", 32)), 0o600))
	values["respond.stamp_key"] = key
	rows := newSettings(fourCPUs).table.Settings
	for _, driver := range cards.Drivers()[1:] {
		ignored, known := notInForce[driver]
		for i := range rows {
			if d := rows[i].Drivers; !known && d != nil && !slices.Contains(d, driver) { // a new card: use its row
				ignored += " " + rows[i].Key
			}
		}
		for _, name := range strings.Fields(ignored) {
			if !slices.ContainsFunc(rows, func(s setting.Setting) bool { return s.Key == name }) {
				t.Errorf("%s is no setting", name)
			}
		}
		for i := range rows {
			row := &rows[i]
			if row.Key == "nic.driver" || row.Key == "nic.device" {
				continue
			}
			base := []string{"nic.driver=" + driver, "nic.device=eth1"}
			if cards.OnBus(driver) {
				base[1] = "nic.device=0000:03:00.0"
			}
			if !cards.CarriesMessages(driver) {
				base = append(base, "respond.addresses=10.0.0.2/24")
			}
			base = append(base, row.Key+"="+other(t, row))
			named := func(sets []string) string {
				s, err := loadConfig("", append(slices.Clone(base), sets...), fourCPUs)
				if s == nil {
					t.Fatalf("%q: %v", base, err)
				}
				for _, e := range s.table.Unused(driver) {
					err = fmt.Errorf("%v; %w", err, e)
				}
				if err != nil && strings.Contains(err.Error(), row.Key) {
					return err.Error()
				}
				return ""
			}
			if why := named(nil); why == "" && row.Needs != nil && !holdsByDefault(row) {
				t.Errorf("driver %s: %s has no effect without %v, and is not named", driver, row.Key, row.Needs)
			}
			why := named(met(t, row))
			if slices.Contains(strings.Fields(ignored), row.Key) != (why != "") {
				t.Errorf("driver %s, %s: named as %q", driver, row.Key, why)
			}
		}
	}
}

// holdsByDefault reports whether a setting has an effect where nothing else is set.
func holdsByDefault(s *setting.Setting) bool {
	return s.Key == "trust.user" || s.Key == "nic.push_max" || strings.HasPrefix(s.Key, "guard.")
}

// met returns -set arguments that meet the conditions of a setting.
func met(t *testing.T, s *setting.Setting) (sets []string) {
	table := newSettings(fourCPUs).table
	switch {
	case s.Key == "respond.stamp_auth_ports": // an error without it
		return []string{"respond.stamp_key=" + values["respond.stamp_key"]}
	case s.Needs == nil || holdsByDefault(s):
		return nil
	}
	for _, c := range s.Needs {
		key, value, ok := strings.Cut(c, "=")
		need := table.Find(key)
		if !ok {
			value = other(t, need)
		}
		if key == "respond.stamp_auth_ports" || key == "respond.stamp_messages" { // one condition is enough
			continue
		}
		sets = append(sets, key+"="+value)
	}
	return sets
}
