package catalogue_test

import (
	"log/slog"
	"strings"
	"testing"

	product "github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// Each setting of [debug], and nic.push_max where it chooses the size of entries, reaches the driver and changes what
// it requests from the device.
func TestDebugSettings(t *testing.T) {
	needs.Long(t)
	wrong := func() sim.Model {
		m := ixgbesim.New(ixgbesim.Options{MAC: ladderMAC})
		m.CorruptEEPROM()
		return m
	}
	backplane := func() sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: ladderMAC}) }
	for _, c := range []struct {
		set   string // "" is the default, for contrast
		model func() sim.Model
		fails string // the error of Open
		says  string // in a violation that the model reports
		shows string // in Info's push mode and notes
		send  bool
		any   bool // a frame for another station is received
	}{
		{set: "", model: refuses(0, ""), shows: "llq 256", send: true},
		{set: "debug.host_version=1", model: refuses(0, ""), fails: "create CQ", says: "driver version"},
		{set: "debug.os_type=9", model: refuses(0, ""), fails: "create CQ", says: "os_type 9"},
		{set: "debug.vector=true", model: refuses(0, ""), fails: "create CQ", says: "vector"},
		{set: "nic.push_max=96", model: refuses(0, ""), shows: "llq 128", send: true},
		{set: "debug.omit_meta=true", model: func() sim.Model { return enasim.New(enasim.Options{MAC: ladderMAC}) }, send: true},
		{set: "debug.omit_meta=true", model: func() sim.Model { return enasim.New(enasim.Options{MAC: ladderMAC, NeedMeta: true}) }, says: "no meta descriptor"},
		{set: "debug.omit_meta=true", model: func() sim.Model { return enasim.New(enasim.Options{MAC: ladderMAC, NoMeta: true}) }, send: true},
		{set: "", model: wrong, fails: "EEPROM checksum is wrong"},
		{set: "debug.skip_eeprom_check=true", model: wrong, shows: "from a verified EEPROM", send: true},
		{set: "debug.link_mode=1", model: backplane, shows: "10 Gb/s over four lanes"},
		{set: "debug.no_steering=true", model: backplane, any: true},
		{set: "debug.no_steering=true", model: func() sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: ladderMAC}) }, any: true},
		{set: "debug.no_steering=true", model: func() sim.Model { return mlx4sim.New(mlx4sim.Options{MAC: ladderMAC}) }, shows: "table of addresses (A0)"},
	} {
		t.Run(c.set, func(t *testing.T) {
			t.Parallel()
			port, far, device := simtest.Serve(t, c.model())
			far.SetUp(true)
			var config product.Config
			table := setting.New(append(config.Settings(), config.DebugSettings()...)...)
			if c.set != "" {
				must.OK(t, table.Set(c.set))
			}
			must.OK(t, table.Apply())
			config.Driver, config.Device, config.Log = "auto", device, slog.New(slog.DiscardHandler)
			dev, err := config.Open()
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) || c.says != "" &&
					!strings.Contains(strings.Join(port.Violations(), "\n"), c.says) {
					t.Errorf("open: %v, want %q; violations %q, want %q", err, c.fails, port.Violations(), c.says)
				}
				if err == nil {
					dev.Close()
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			info := dev.Info()
			if all := info.Push + "\n" + strings.Join(info.Notes, "\n"); !strings.Contains(all, c.shows) {
				t.Errorf("Info lacks %q:\n%s", c.shows, all)
			}
			if c.says != "" {
				check.OK(t, dev.Send(nictest.EchoRequest(98)))
				await.Until(t, "a violation", func() bool {
					return strings.Contains(strings.Join(port.Violations(), ""),
						c.says)
				})
				return
			}
			if c.send {
				check.OK(t, dev.Send(nictest.EchoRequest(98)))
				await.Until(t, "the frame", func() bool { return far.Recv(0) != nil })
			}
			if c.any {
				await.Until(t, "a frame for another station", func() bool { return receives(t, dev, far) })
			}
			for _, v := range port.Violations() {
				t.Error("violation: ", v)
			}
		})
	}
}

func receives(t *testing.T, dev nic.Device, far *sim.Cable) bool {
	frame := nictest.EchoRequest(98)
	frame[5] ^= 0x40 // another station's
	far.Send(0, frame)
	n, _, err := dev.Recv(make([]byte, 2048))
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}
