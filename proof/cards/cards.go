// Package cards is what the proof knows of each card: its model, the kinds that the model can be, Linux's driver, faults and
// benchmark. The product's half of the catalogue is package internal/cards, which links no model.
package cards

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rebound-nic/rebound/sim"
)

// All is the catalogue: one row per card. A new card is added by its row here.
var All = []Card{toy, ixgbe, ena, mlx5, mlx4, efa, virtio}

// Card is one model, and what shows that its driver is right.
type Card struct {
	Name   string // of the model, as in simnic -model
	Driver string // the row of internal/cards that this one refers to; empty for a model without a driver in the product

	Profiles []Profile // kinds of the card that the model can be; the first is the default

	// Random makes a model for the campaign, of a random profile if it is nil. Faults are the groups of faults that this model can have,
	// beside those of every model and those that have its name.
	Random func(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model
	Faults []string

	Lab *Lab // how Linux drives the model; nil where the lab has no guest for it

	Benchmark bool // the driver's BenchmarkPoll is one of make cycles
}

// Profile is one kind of card that a model can be.
type Profile struct {
	Name  string // as in simnic -profile
	Doc   string
	Alias string // a name of -model for this profile alone; empty for none
	Link  sim.LinkType
	New   func(mac [6]byte) sim.Model
}

// Lab is what the guests of the lab have to know, and which scenarios they run.
type Lab struct {
	Module    string                      // Linux's driver
	Scenarios []string                    // of those below
	Model     func(mac [6]byte) sim.Model // the first profile if nil
	Other     func(mac [6]byte) sim.Model // another kind of the same card, for two that talk to each other
	Jumbo     int                         // the MTU of the jumbo frame check
	Physical  bool                        // our driver also runs on sysfs, in a machine without an IOMMU

	// Agree returns which counters of "ethtool -S" differ from the model's own: after the first traffic, and, with all false, after a
	// change of MTU, which resets those that the device keeps.
	Agree func(m sim.Model, shown map[string]uint64, all bool) []string
}

// Scenarios of the lab that any card can run.
const (
	F2     = "F2"     // the unmodified Linux driver on the model
	F2Pair = "F2pair" // the same, on two models that talk to each other
	F3     = "F3"     // our driver in that guest, against Linux's
	Smoke  = "smoke"  // a short exchange, beside all other cards
	IPXE   = "iPXE"   // iPXE boots through the model
	XDP    = "xdp"    // our XDP program in Linux's driver
	AFXDP  = "afxdp"  // zero copy in Linux's driver
)

// Firmware is a switch for each way in which a model's firmware can fail a command.
type Firmware struct {
	Withhold atomic.Bool   // no command completes
	Refuse   atomic.Uint32 // one command in so many is refused; 0 for none
	asked    atomic.Uint32
}

// Status returns the status of the next command: 0, or that of an internal error, which all cards with such firmware number alike.
func (f *Firmware) Status() uint8 {
	if n := f.Refuse.Load(); n > 0 && f.asked.Add(1)%n == 0 {
		return 1
	}
	return 0
}

// New makes the default kind of the card.
func (c *Card) New(mac [6]byte) sim.Model { return c.Profiles[0].New(mac) }

// Make makes a model for the campaign.
func (c *Card) Make(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model {
	if c.Random == nil {
		return c.Profiles[r.IntN(len(c.Profiles))].New(mac)
	}
	return c.Random(mac, r, f)
}

// Runs reports whether the lab runs a scenario of the card.
func (c *Card) Runs(scenario string) bool {
	return c.Lab != nil && slices.Contains(c.Lab.Scenarios, scenario)
}

// Names are those of all models.
func Names() (all []string) {
	for i := range All {
		all = append(all, All[i].Name)
	}
	return all
}

// Find returns the row of a model, nil if there is none.
func Find(name string) *Card {
	for i := range All {
		if All[i].Name == name {
			return &All[i]
		}
	}
	return nil
}

// FindProfile returns the profile of a model by their names. An empty profile is the model's first. name may be a profile's alias.
func FindProfile(name, wanted string) (*Profile, error) {
	if name == "" {
		return nil, errors.New("the name of a model is empty")
	}
	var names []string
	for i := range All {
		c := &All[i]
		names = append(names, c.Name)
		var known []string
		for j := range c.Profiles {
			p := &c.Profiles[j]
			if (c.Name == name || p.Alias == name) && (wanted == "" || p.Name == wanted) {
				return p, nil
			}
			if p.Alias != "" {
				names = append(names, p.Alias)
			}
			known = append(known, p.Name)
		}
		if c.Name == name {
			return nil, fmt.Errorf("model %s has no profile %q (%s)", name, wanted, strings.Join(known, ", "))
		}
	}
	return nil, fmt.Errorf("no such model: %q (%s)", name, strings.Join(names, ", "))
}

// Differ compares by name.
func Differ(shown, want map[string]uint64) (d []string) {
	for name, w := range want {
		if got, ok := shown[name]; !ok || got != w {
			d = append(d, fmt.Sprintf("%s is %d, the model says %d", name, got, w))
		}
	}
	slices.Sort(d)
	return d
}
