package cards

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// A socket is not asked to push: it would silently not.
func TestSocketDoesNotPush(t *testing.T) {
	for _, driver := range []string{"auto", "afpacket", "afxdp"} {
		var c Config
		table := setting.New(c.Settings()...)
		for _, s := range []string{"nic.device=lo", "nic.push=llq", "nic.driver=" + driver} {
			if err := table.Set(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := table.Apply(); err != nil {
			t.Fatal(err)
		}
		c.Log = slog.New(slog.DiscardHandler)
		_, err := c.Open()
		if err == nil || !strings.Contains(err.Error(), `push mode "llq" is none of auto, off: a socket`) {
			t.Errorf("%s with nic.push = llq: %v", driver, err)
		}
	}
}

// A driver that is not for the device is refused before anything is opened.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		driver, device, want string
	}{
		{"auto", "eth1", ""},
		{"auto", "0000:03:00.0", ""},
		{"afxdp", "eth1", ""},
		{"mlx5", "vfio-user:/run/x", ""},
		{"afxdp", "0000:03:00.0", "afxdp drives a network interface, and 0000:03:00.0 is a PCI function"},
		{"ena", "eth1", "ena drives a PCI function, and eth1 is a network interface"},
	} {
		got := ""
		if err := Fits(c.driver, c.device); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.driver, c.device, got, c.want)
		}
	}
}
