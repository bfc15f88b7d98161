package catalogue

import (
	"strings"
	"testing"

	product "github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// Every profile of every model is found by its name, and has an ID that the card's driver supports.
func TestProfiles(t *testing.T) {
	seen := 0
	for i := range All {
		c := &All[i]
		names := map[string]bool{}
		for i, p := range c.Profiles {
			if found, err := FindProfile(c.Name, p.Name); err != nil || found.Doc != p.Doc || names[p.Name] ||
				p.Name == "" {
				t.Errorf("%s %s is found as %+v, %v; is it there twice? %v", c.Name, p.Name, found, err, names[p.Name])
			}
			names[p.Name] = true
			m := p.New([6]byte{2, 0, 0, 0, 0, 9})
			port, err := sim.New(m, sim.Options{Name: p.Name})
			if err != nil {
				t.Fatalf("%s %s: %v", c.Name, p.Name, err)
			}
			port.Close()
			id := pci.ID{Vendor: m.Config().Vendor, Device: m.Config().Device}
			if got := product.DriverFor(id); got != c.Driver {
				t.Errorf("%s %s is %v, which driver %q has; its card is driver %q's", c.Name, p.Name, id, got, c.Driver)
			}
			if first, err := FindProfile(c.Name, ""); err != nil || i == 0 && first.Name != p.Name {
				t.Errorf("%s without a profile is %+v, %v", c.Name, first, err)
			}
			seen++
		}
	}
	if seen < 35 {
		t.Errorf("%d profiles", seen)
	}
	for name, want := range map[string]string{"efa3": "efa3", "mlx4pro": "cx3pro", "efa": "efa1"} {
		if p, err := FindProfile(name, ""); err != nil || p.Name != want {
			t.Errorf("model %s is profile %+v, %v; want %s", name, p, err, want)
		}
	}
	for args, want := range map[string]string{
		"mlx5 cx9": `model mlx5 has no profile "cx9" (cx4, cx4vf,`,
		"mlx6 cx4": `no such model: "mlx6" (`,
		"toy llq":  `model toy has no profile "llq" (toy)`,
		" toy":     "is empty",
	} {
		name, profile, _ := strings.Cut(args, " ")
		if _, err := FindProfile(name, profile); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %s", args, err, want)
		}
	}
}

func TestFurtherProfile(t *testing.T) {
	all := mlx5Profiles(append(mlx5sim.Profiles(), mlx5sim.ConnectX7))
	check.Equal(t, all[len(all)-1].Name, "cx7", "the last profile is %q")
}

func TestHalvesAgree(t *testing.T) {
	rows := map[string]int{}
	for i := range All {
		rows[All[i].Driver]++
	}
	for _, d := range product.Drivers() {
		if product.OnBus(d) && rows[d] != 1 {
			t.Errorf("driver %s has %d rows in proof/catalogue, want 1", d, rows[d])
		}
		delete(rows, d)
	}
	delete(rows, "")
	if len(rows) > 0 {
		t.Errorf("rows of proof/catalogue refer to drivers that internal/cards lacks: %v", rows)
	}
}

func TestFew(t *testing.T) {
	check.Equal(t, len(few("overflow", 10, 100)), 0, "a tenth of the frames: %d differences")
	check.Equal(t, len(few("overflow", 11, 100)), 1, "more than a tenth: %d differences")
	check.Equal(t, len(few("overflow", 0, 0)), 0, "no frames: %d differences")
}
