package responder

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/rows"
)

var fourCPUs = []int{0, 1, 2, 3}

// whole is a valid configuration. The table below depends on its line numbers.
const whole = `[nic]
driver = "afpacket"
device = "eth1"
[respond]
addresses = ["10.0.0.2/24",
  "fd00::2/64"]
udp_ports = [7, 7000]
stamp_ports = [862]
[cpu]
cores = [2, 3]
[stats]
interval = "10s"
`

func TestConfigProblems(t *testing.T) {
	with := func(old, new string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("%q is not in the config", old)
		}
		return strings.Replace(whole, old, new, 1)
	}
	for _, c := range []struct {
		doc  string
		sets []string
		want string
	}{
		{doc: with(`"afpacket"`, `"e1000"`), want: `F:2: nic.driver: "e1000" is not one of afpacket, afxdp, xdp, ixgbe, mlx5, mlx4, ena, efa, virtio, auto`},
		{doc: strings.Replace(with(`eth1`, ``), "fd00::2", "fd00::fffe", 1), want: "F:3: nic.device: is empty: name an interface, a PCI address or vfio-user:PATH (`rebound-responder nics` lists the devices)"},
		{doc: with(`eth1`, `0000:03:00.0`), want: `F:2: nic.driver: afpacket drives a network interface, and 0000:03:00.0 is a PCI function`},
		{doc: with(`eth1`, `../eth1`), want: `F:3: nic.device: "../eth1" is not an interface name, PCI address (0000:03:00.0) or vfio-user:PATH`},
		{doc: with(`eth1`, `interfacenametoolong`), want: `F:3: nic.device: "interfacenametoolong" is not an interface name, PCI address (0000:03:00.0) or vfio-user:PATH`},
		{doc: with(`eth1"`, "eth1\"\nqueue = -1"), want: `F:4: nic.queue: -1 is not 0 or more`},
		{doc: with(`eth1"`, "eth1\"\npush = \"blue\""), want: `F:4: nic.push: "blue" is not one of auto, full, header, llq, off`},
		{doc: with(`eth1"`, "eth1\"\npush_max = 5000"), want: `F:4: nic.push_max: 5000 is not 1 to 1024; 0 is the card's maximum`},
		{doc: with(`eth1"`, "eth1\"\nmac = \"01:00:5e:10:00:01\""), want: `F:4: nic.mac: "01:00:5e:10:00:01" is not the MAC address of one station, such as "02:00:5e:10:00:01"`},
		{doc: with(`eth1"`, "eth1\"\nmac = \"02:00:5e:10:00:01:02:03\""), want: `F:4: nic.mac: "02:00:5e:10:00:01:02:03" is not the MAC address of one station, such as "02:00:5e:10:00:01"`},
		{doc: with(`eth1"`, "eth1\"\nring_size = 100"), want: `F:4: nic.ring_size: 100 is not a power of two from 32 to 65536; 0 is the driver's default`},

		{doc: with(`10.0.0.2/24`, `10.0.0.300`), want: `F:5: respond.addresses: "10.0.0.300" is not an address, such as "10.0.0.2/24"`},
		{doc: with(`fd00::2/64`, `ff02::1`), want: `F:6: respond.addresses: ff02::1 is a multicast address`},
		{doc: with(`fd00::2/64`, `::1`), want: `F:6: respond.addresses: ::1 is a loopback address`},
		{doc: with(`10.0.0.2/24`, `127.0.0.1/8`), want: `F:5: respond.addresses: 127.0.0.1 is a loopback address`},
		{doc: with(`10.0.0.2/24`, `224.0.0.1`), want: `F:5: respond.addresses: 224.0.0.1 is a multicast address`},
		{doc: with(`10.0.0.2/24`, `0.0.0.0`), want: `F:5: respond.addresses: 0.0.0.0 is the unspecified address`},
		{doc: with(`10.0.0.2/24`, `255.255.255.255`), want: `F:5: respond.addresses: 255.255.255.255 is not a unicast address`},
		{doc: with(`10.0.0.2/24`, `10.0.0.2/0`), want: `F:5: respond.addresses: 10.0.0.2/0: a subnet of length 0 has no host`},
		{doc: with(`10.0.0.2/24`, `10.0.0.0/24`), want: `F:5: respond.addresses: 10.0.0.0/24 is the address of the subnet itself`},
		{doc: with(`10.0.0.2/24`, `10.0.0.255/24`), want: `F:5: respond.addresses: 10.0.0.255/24 is the broadcast address of its subnet`},
		{doc: with(`fd00::2/64`, `10.0.0.2`), want: `F:6: respond.addresses: 10.0.0.2 is listed twice`},
		{doc: with(`fd00::2/64`, `::ffff:10.0.0.3`), want: `F:6: respond.addresses: ::ffff:10.0.0.3 is an IPv4 address in an IPv6 form: write 10.0.0.3`},
		{doc: with(`fd00::2/64`, `fe80::2%eth1`), want: `F:6: respond.addresses: fe80::2%eth1 has a zone: remove it, nic.device is the interface`},
		{doc: "[nic]\ndevice='eth1'", want: `respond.addresses: is empty: set the addresses to answer for, as in -set respond.addresses=10.0.0.2/24 (systemd: OPTIONS in /etc/rebound/eth1.env)`},

		{doc: with(`7, 7000`, `7, 7`), want: `F:7: respond.udp_ports: port 7 is listed twice`},
		{doc: with(`7, 7000`, `7, 862`), want: `F:8: respond.stamp_ports: port 862 is already in respond.udp_ports`},
		{doc: with(`7, 7000`, `0`), want: `F:7: respond.udp_ports: 0 is not a port (1 to 65535)`},
		{doc: with(`7, 7000`, `70000`), want: `F:7: respond.udp_ports: 70000 is not a port (1 to 65535)`},

		{doc: with(`[862]`, "[862]\nstamp_mode = \"full\""), want: `F:9: respond.stamp_mode: "full" is not one of stateless, stateful`},
		{doc: with(`[862]`, "[862]\nstamp_sessions = 0"), want: `F:9: respond.stamp_sessions: 0 is not 1 to 1048576`},
		{doc: with(`[862]`, "[862]\nstamp_idle = \"5\""), want: `F:9: respond.stamp_idle: "5" is not a duration from 1s to 24h`},
		{doc: with(`[862]`, "[862]\nstamp_auth_ports = [863]"), want: `F:9: respond.stamp_auth_ports: need respond.stamp_key`},
		{doc: with(`[862]`, "[862]\nstamp_auth_ports = [863,\n 862]"), want: `F:10: respond.stamp_auth_ports: port 862 is already in respond.udp_ports or respond.stamp_ports`},
		{doc: with(`[862]`, "[862]\nstamp_key = \"00ff\""), want: `F:9: respond.stamp_key: 4 characters (want 64 hexadecimal digits, or the path of a file that has them, with a slash: ./key)`},
		{doc: with(`[862]`, "[862]\nstamp_dscp = [1, 64]"), want: `F:9: respond.stamp_dscp: "64" is neither a DSCP (0 to 63) nor "any"`},
		{doc: with(`[862]`, "[862]\nstamp_dscp = [1, \"any\"]"), want: `F:9: respond.stamp_dscp: "any" must be the only entry`},
		{doc: with(`"afpacket"`, `"xdp"`), sets: []string{"respond.stamp_mode=stateful"}, want: `-set: respond.stamp_mode: driver xdp keeps no STAMP sessions; use afxdp`},
		{doc: with(`"afpacket"`, `"xdp"`), sets: []string{"respond.stamp_tlvs=true"}, want: `-set: respond.stamp_tlvs: driver xdp returns the TLVs of test packets unchanged; use afxdp`},
		{doc: with(`"afpacket"`, `"xdp"`), sets: []string{"respond.stamp_clock_error=1us"}, want: `-set: respond.stamp_clock_error: driver xdp reports the kernel's clock error; use afxdp`},
		{doc: whole, sets: []string{"respond.stamp_key=" + strings.Repeat("5a", 32)}, want: `-set: respond.stamp_key: would be visible to all users in the process list: give the path of a file that has it`},

		{doc: whole + "[trust]\nuser='no one here'", want: `F:14: trust.user: "no one here" is not a user of this machine (want auto, root, a name or a number)`},
		{doc: whole + "[trust]\nuser='0'", want: `F:14: trust.user: user 0 has uid 0 and gid 0: want an unprivileged user`},
		{doc: whole + "[trust]\nuser='65534'", sets: []string{"nic.driver=xdp", "nic.pin=x"}, want: `F:14: trust.user: "65534" cannot be used here: nic.pin uses the BPF file system, which belongs to root (want auto or root)`},

		{doc: whole + "[guard]\nmode='half'", want: `F:14: guard.mode: "half" is not one of strict, open`},
		{doc: whole + "[guard]\nrate=-1", want: `F:14: guard.rate: -1 is not 0 or more`},
		{doc: whole + "[guard]\nburst=0", want: `F:14: guard.burst: 0 is not 1 or more`},
		{doc: with(`[862]`, "[862]\nvlans = [1,\n \"all\"]"), want: `F:10: respond.vlans: "all" is not a VLAN (1 to 4094), "none" or "any"`},
		{doc: with(`[862]`, "[862]\nvlans = [1, 4095]"), want: `F:9: respond.vlans: "4095" is not a VLAN (1 to 4094), "none" or "any"`},
		{doc: with(`[862]`, "[862]\nvlans = [1, \"any\"]"), want: `F:9: respond.vlans: "any" must be the only entry`},
		{doc: with(`[862]`, "[862]\nvlans = [\"none\", 1, 1]"), want: `F:9: respond.vlans: 1 is listed twice`},
		{doc: with(`[862]`, "[862]\nvlans = []"), want: `F:9: respond.vlans: is empty: no frame would be answered`},
		{doc: with(`[862]`, "[862]\nvlans = \"any\""), want: `F:9: respond.vlans: is a string, must be a list of strings and integers`},
		{doc: with(`[862]`, "[862]\nvlans = [true]"), want: `F:9: respond.vlans: has a boolean, must be a list of strings and integers`},
		{doc: with(`[2, 3]`, "[0,1,2, 3]\nisolate = true"), want: `F:11: cpu.isolate: isolates every core of this machine: leave one for everything else`},
		{doc: with(`[2, 3]`, "[2, 3]\nrealtime_guard = \"off\""), want: `F:11: cpu.realtime_guard: "off" is not one of refuse, lift, keep`},
		{doc: with(`2, 3`, `2, 4`), want: `F:10: cpu.cores: this machine has no core 4 (online: 0-3)`},
		{doc: with(`2, 3`, `2, 2`), want: `F:10: cpu.cores: core 2 is listed twice`},
		{doc: with(`[2, 3]`, "[2, 3]\npriority = 100"), want: `F:11: cpu.priority: 100 is not 1 to 99; 0 is the normal scheduler`},
		{doc: with(`[2, 3]`, "[0,1,2, 3]\npriority = 1"), want: `F:11: cpu.priority: SCHED_FIFO on every core of this machine: leave one for everything else`},
		{doc: whole + "[log]\nlevel='loud'", want: `F:14: log.level: "loud" is not debug, info, notice, warn or error`},
		{doc: whole + "[log]\nformat='xml'", want: `F:14: log.format: "xml" is not one of text, json`},
		{doc: with(`10s`, `10`), want: `F:12: stats.interval: "10" is not a duration of 1s or more, such as "10s"; "0s" is off`},
		{doc: with(`10s`, `1ms`), want: `F:12: stats.interval: "1ms" is not a duration of 1s or more, such as "10s"; "0s" is off`},
		{doc: whole + "listen='9100'", want: `F:13: stats.listen: "9100" is not HOST:PORT`},

		{doc: whole, sets: []string{"respond.udp_ports=[7,7]"}, want: `-set: respond.udp_ports: port 7 is listed twice`},
		{doc: whole, sets: []string{"cpu.cores=9"}, want: `-set: cpu.cores: this machine has no core 9 (online: 0-3)`},
		{doc: whole, sets: []string{"respond.addresses=239.1.1.1"}, want: `-set: respond.addresses: 239.1.1.1 is a multicast address`},
	} {
		file := written(t, c.doc)
		_, err := loadConfig(file, c.sets, fourCPUs)
		check.Equal(t, strings.ReplaceAll(fmt.Sprint(err), file, "F"), c.want, "got %s")
	}
}

// written returns the name of a configuration file.
func written(t *testing.T, doc string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "c.toml")
	must.OK(t, os.WriteFile(file, []byte(doc), 0o600))
	return file
}

// A later -set overrides an earlier one, and any overrides the file. Other keys keep the value of the file, or the
// default.
func TestSetPrecedence(t *testing.T) {
	for _, c := range []struct {
		sets []string
		want func(*settings) (got, want any)
	}{
		{nil, func(s *settings) (any, any) { return s.nic.Device, "eth1" }},
		{nil, func(s *settings) (any, any) { return fmt.Sprint(s.respond.addresses), "[10.0.0.2/24 fd00::2/64]" }},
		{nil, func(s *settings) (any, any) {
			return fmt.Sprint(s.respond.udp, s.respond.stamp.ports, s.cpu.cores), "[7 7000] [862] [2 3]"
		}},
		{nil, func(s *settings) (any, any) { return s.match().Mode, fastpath.Strict }},
		{nil, func(s *settings) (any, any) { return s.stats.interval, 10 * time.Second }},
		{[]string{"nic.device=eth2"}, func(s *settings) (any, any) { return s.nic.Device, "eth2" }},
		{[]string{"nic.device=eth2", "nic.device=eth3"}, func(s *settings) (any, any) { return s.nic.Device, "eth3" }},
		{[]string{"nic.device=eth2"}, func(s *settings) (any, any) { return s.nic.Driver, "afpacket" }},
		{[]string{" nic.device = \"eth2\" "}, func(s *settings) (any, any) { return s.nic.Device, "eth2" }},
		{[]string{"nic.driver=auto", "nic.device=0000:03:00.0"}, func(s *settings) (any, any) { return s.nic.Device, "0000:03:00.0" }},
		{[]string{"nic.device=1e5"}, func(s *settings) (any, any) { return s.nic.Device, "1e5" }},
		{[]string{"nic.driver=auto", "nic.device=vfio-user:/run/a b"}, func(s *settings) (any, any) { return s.nic.Device, "vfio-user:/run/a b" }},
		{[]string{"respond.udp_ports=[8,9]"}, func(s *settings) (any, any) { return s.respond.udp, []uint16{8, 9} }},
		{[]string{"respond.udp_ports=8"}, func(s *settings) (any, any) { return s.respond.udp, []uint16{8} }},
		{[]string{"respond.udp_ports=[]"}, func(s *settings) (any, any) { return len(s.respond.udp), 0 }},
		{[]string{"respond.addresses=10.1.0.1"}, func(s *settings) (any, any) { return fmt.Sprint(s.respond.addresses), "[10.1.0.1/32]" }},
		{[]string{"respond.addresses=[10.1.0.1/16, fd00::9]"}, func(s *settings) (any, any) { return fmt.Sprint(s.respond.addresses), "[10.1.0.1/16 fd00::9/128]" }},
		{[]string{`respond.addresses=["10.1.0.1/16"]`}, func(s *settings) (any, any) { return fmt.Sprint(s.respond.addresses), "[10.1.0.1/16]" }},
		{[]string{"cpu.lock_memory=false"}, func(s *settings) (any, any) { return s.cpu.lockMemory, false }},
		{nil, func(s *settings) (any, any) { return s.match().VLANs, []uint16(nil) }},
		{[]string{"respond.vlans=none"}, func(s *settings) (any, any) { return s.match().VLANs, []uint16{0} }},
		{[]string{"respond.vlans=none,100, 7"}, func(s *settings) (any, any) { return s.match().VLANs, []uint16{0, 100, 7} }},
		{[]string{"guard.rate=5", "guard.burst=3"}, func(s *settings) (any, any) { c := s.match(); return []uint64{c.Rate, c.Burst}, []uint64{5, 3} }},
		{nil, func(s *settings) (any, any) { return s.match().Loop, uint32(64) }},
		{[]string{"guard.loop=0"}, func(s *settings) (any, any) { return s.match().Loop, uint32(0) }},
		{[]string{"guard.mode=open"}, func(s *settings) (any, any) { return s.match().Mode, fastpath.Open }},
		{[]string{"stats.anonymous=true"}, func(s *settings) (any, any) { return s.stats.anonymous, true }},
		{[]string{"stats.report=out/a=b"}, func(s *settings) (any, any) { return s.stats.report, "out/a=b" }},
	} {
		s := must.Get(loadConfig(written(t, whole), c.sets, fourCPUs))(t)
		if got, want := c.want(s); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, want %v", c.sets, got, want)
		}
	}
}

// The distributed config.toml is generated from the table, and has the table's defaults.
func TestConfigTOMLIsTheTable(t *testing.T) {
	doc := must.Get(os.ReadFile("../../config.toml"))(t)
	if want := newSettings(nil).table.TOML(intro); string(doc) != want {
		t.Errorf("config.toml is not what `rebound-responder config` prints:\n%s", want)
	}
	s := newSettings(nil)
	must.OK(t, s.table.Parse("config.toml", string(doc)))
	must.OK(t, s.table.Apply())
	check.Equal(t, fmt.Sprintf("%+v", s.values()), fmt.Sprintf("%+v", newSettings(nil).values()), "config.toml has\n%s")
}

func (s settings) values() settings {
	s.table = nil
	return s
}

func TestEveryRowRoundTrips(t *testing.T) {
	rows.RoundTrip(t, func() (*setting.Table, func() string) {
		s := newSettings(fourCPUs)
		return s.table, func() string { return fmt.Sprintf("%+v", s.values()) }
	}, "testdata/settings.txt")
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(whole), "nic.device=eth2")
	f.Add([]byte(""), "respond.udp_ports=[7, 8]")
	f.Add([]byte("nic = {device = 'x', queue = 1}\nrespond.addresses = ['10.0.0.1']"), "respond.addresses=[a,'b']")
	f.Add([]byte("[nic]\ndevice = \"\"\"\nx\"\"\"\n[[cpu]]"), "cpu.cores=[1,\n2]")
	f.Fuzz(func(t *testing.T, doc []byte, set string) {
		s := newSettings(fourCPUs)
		lines := strings.Count(string(doc), "\n") + 1
		err := s.table.Parse("F", string(doc))
		if err == nil {
			err = s.table.Set(set)
		}
		if err == nil {
			err = s.table.Apply()
		}
		if err == nil {
			err = s.check(fourCPUs)
		}
		if err == nil {
			return
		}
		if strings.Contains(err.Error(), "struct") || strings.ContainsRune(err.Error(), '\n') &&
			!strings.ContainsRune(set, '\n') {
			t.Fatalf("no message for a reader: %q", err)
		}
		var line int
		if n, _ := fmt.Sscanf(err.Error(), "F:%d:", &line); n == 1 && (line < 1 || line > lines) {
			t.Fatalf("line %d of %d: %v", line, lines, err)
		}
	})
}

func TestKeyInConfig(t *testing.T) {
	file := written(t, strings.ReplaceAll(whole, `[862]`, "[862]\nstamp_auth_ports = [863]\nstamp_key = \""+
		strings.Repeat("5a", 32)+`"`))
	for mode, want := range map[os.FileMode]string{0o600: "", 0o644: "mode 0644: it has a key"} {
		must.OK(t, os.Chmod(file, mode))
		s, err := loadConfig(file, nil, fourCPUs)
		switch {
		case want == "" && err != nil:
			t.Error(err)
		case want == "" && (len(s.match().Reflector.Key) != 32 || s.match().Reflector.Key[31] != 0x5a):
			t.Error("the key has not arrived")
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "5a5a")):
			t.Errorf("mode %#o: %v, want %q", mode, err, want)
		}
	}
}
