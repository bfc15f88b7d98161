package appliance

import (
	"encoding/binary"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// serveNTP answers with a time that is ahead of this host's.
func serveNTP(t *testing.T, ahead time.Duration) {
	t.Helper()
	c := must.Get(net.ListenUDP("udp4", &net.UDPAddr{Port: 123}))(t)
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 512); ; {
			n, from, err := c.ReadFromUDP(b)
			if err != nil {
				return
			}
			if n < 48 {
				continue
			}
			const since1900 = 2_208_988_800 // seconds from NTP's era to Unix time
			at := time.Now().Add(ahead)
			stamp := uint64(at.Unix()+since1900)<<32 | uint64(at.Nanosecond())<<32/1e9
			r := make([]byte, 48)                       // RFC 5905 §7.3
			r[0], r[1], r[2], r[3] = 4<<3|4, 1, 6, 0xec // version 4, server, stratum 1, poll interval, precision
			copy(r[12:], "TEST")
			for _, at := range []int{16, 32, 40} { // set, received, sent
				binary.BigEndian.PutUint64(r[at:], stamp)
			}
			copy(r[24:], b[40:48]) // origin
			c.WriteToUDP(r, from)
		}
	}()
}

// The kernel's igb sets the clock of QEMU's model to the system's when it starts. NTP then steps the system's three
// hours ahead, and the hardware clock steps it back. STAMP replies say that the clock is synchronized, and its error. A
// clock that is not there is named with those that are.
func TestHardwareClock(t *testing.T) {
	k := guests(t)
	img := guestImage(t) + "/rebound.img"
	on := func(clock string) string {
		return disk(t, img, map[string]string{"/rebound.toml": answering("[appliance]\n" + clock + "\n")})
	}
	side := newSide(t)
	address(t, managementTap, "10.77.0.1/24")
	lease(t, managementTap, "")
	serveNTP(t, 3*time.Hour)
	first, missing, good := on("clock = \"ntp\""), on("clock = \"/dev/ptp7\""), on("clock = \"/dev/ptp0\"")
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: first, usb: true, sockets: m.sockets[:1], netdev: side.netdev(),
		more: []string{"-device", "pcie-root-port,id=clock,chassis=9,addr=0x13",
			"-device", "igb,romfile=,bus=clock"}})
	g.host, g.dial = "10.77.0.2:9469", side.dial
	if line := g.says("clock: NTP from ", 1); !strings.HasPrefix(line,
		"clock: NTP from 10.77.0.1, stratum 1, offset ") || !strings.HasSuffix(line, ", stepped") {
		t.Errorf("%q", line)
	}
	g.says("rebound: ready driver=", 1)

	g.replace(missing)
	if line := g.says("clock: not synchronized: ", 1); !strings.Contains(line,
		"appliance.clock: no /dev/ptp7 (this machine has /dev/ptp0, ") {
		t.Errorf("%q", line)
	}
	g.says("rebound: ready driver=", 2)

	g.replace(good)
	line := g.says("clock: /dev/ptp0, offset ", 1)
	f := regexp.MustCompile(`offset (\S+), error at most (\S+), stepped$`).FindStringSubmatch(line)
	if f == nil {
		t.Fatalf("%q", line)
	}
	// The two clocks differ by what NTP stepped, which is three hours and the error of the guest's real-time clock.
	offset, bound := must.Get(time.ParseDuration(f[1]))(t), must.Get(time.ParseDuration(f[2]))(t)
	if offset > -3*time.Hour+time.Minute || offset < -3*time.Hour-time.Minute {
		t.Errorf("the offset from /dev/ptp0 is %v", offset)
	}
	g.says("rebound: ready driver=", 3)
	said := measure(t, k, "ixgbe", m.sockets[1], "-count", "200", "-proto", "stamp", "-v")
	e := regexp.MustCompile(
		`reports its clock as synchronised, with an error of at most (\d[^;]*);`).FindStringSubmatch(said)
	if e == nil {
		t.Errorf("STAMP: %s", said)
	} else {
		t.Logf("offset %v, error at most %v, in STAMP replies %s", offset, bound, e[1])
	}
	var s string
	g.until("a comparison that needs no step", func() bool {
		s = g.status().Clock
		return strings.HasPrefix(s, "/dev/ptp0, offset ") && !strings.HasSuffix(s, "stepped")
	})
	t.Log(s)
	g.powerButton()
	fsck(t, good)
}
