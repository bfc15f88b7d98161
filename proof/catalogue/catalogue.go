// Package catalogue has the test side of the card catalogue: each card's model, its profiles, Linux's driver, faults
// and benchmark. The product's side is package internal/cards, which links no model.
package catalogue

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

// Card is one model, with the tests of its driver.
type Card struct {
	Name   string // of the model, as in simnic -model
	Driver string // the corresponding row of internal/cards; empty for a model without a driver in the product

	Profiles []Profile // device types that the model supports; the first is the default

	// Random creates a model for the campaign, of a random profile; nil if there is no such model. Faults are the
	// groups of faults that this model supports, in addition to those of every model and those with its name.
	Random func(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model
	Faults []string

	Lab *Lab // how Linux drives the model; nil if the lab has no guest for it

	Benchmark bool // make cycles includes the driver's BenchmarkPoll
}

// Profile is a device type that a model supports.
type Profile struct {
	Name  string // as in simnic -profile
	Doc   string
	Alias string // a name for -model that selects this profile; empty for none
	Link  sim.LinkType
	New   func(mac [6]byte) sim.Model
}

// Lab describes the card to the lab's guests, and which scenarios they run.
type Lab struct {
	Module    string                      // Linux's driver
	Scenarios []string                    // some of those below
	Model     func(mac [6]byte) sim.Model // the first profile if nil
	Other     func(mac [6]byte) sim.Model // another type of the same card, for tests with two different ones
	Jumbo     int                         // the MTU of the jumbo frame check
	Physical  bool                        // our driver also runs on sysfs, in a machine without an IOMMU

	// Agree returns the counters of "ethtool -S" that differ from the model's: after the first traffic, and, with all
	// false, after a change of MTU, which resets the counters that the driver keeps.
	Agree func(m sim.Model, shown map[string]uint64, all bool) []string
}

// Scenarios of the lab that any card can run.
const (
	F2     = "F2"     // the unmodified Linux driver on the model
	F2Pair = "F2pair" // the same, on two models that talk to each other
	F3     = "F3"     // our driver in that guest, against Linux's
	Smoke  = "smoke"  // a short exchange, together with all other cards
	IPXE   = "iPXE"   // iPXE boots through the model
	XDP    = "xdp"    // our XDP program in Linux's driver
	AFXDP  = "afxdp"  // zero copy in Linux's driver
)

// Firmware has a switch for each way in which a model's firmware can fail a command.
type Firmware struct {
	Withhold atomic.Bool   // no command completes
	Refuse   atomic.Uint32 // one command out of this number is refused; 0 for none
	asked    atomic.Uint32
}

// Status returns the status of the next command: 0, or that of an internal error, whose number is the same for all
// cards with such firmware.
func (f *Firmware) Status() uint8 {
	if n := f.Refuse.Load(); n > 0 && f.asked.Add(1)%n == 0 {
		return 1
	}
	return 0
}

// New creates a model with the card's default profile.
func (c *Card) New(mac [6]byte) sim.Model { return c.Profiles[0].New(mac) }

// Make creates a model for the campaign.
func (c *Card) Make(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model {
	if c.Random == nil {
		return c.Profiles[r.IntN(len(c.Profiles))].New(mac)
	}
	return c.Random(mac, r, f)
}

// Runs reports whether the lab runs a scenario for the card.
func (c *Card) Runs(scenario string) bool {
	return c.Lab != nil && slices.Contains(c.Lab.Scenarios, scenario)
}

// Names are the names of all models.
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

// FindProfile returns a profile by model name and profile name. An empty profile name means the model's first. name may
// be a profile's alias.
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

// Differ compares the values by name.
func Differ(shown, want map[string]uint64) (d []string) {
	for name, w := range want {
		if got, ok := shown[name]; !ok || got != w {
			d = append(d, fmt.Sprintf("%s is %d, the model says %d", name, got, w))
		}
	}
	slices.Sort(d)
	return d
}

// few is a difference if more than a tenth of the frames found no buffer. A guest that is descheduled on a busy machine
// lets its ring run dry while the peer sends; a model that does not see posted buffers drops nearly all.
func few(name string, n, frames uint64) []string {
	if n > frames/10 {
		return []string{fmt.Sprintf("%s is %d, more than a tenth of %d frames", name, n, frames)}
	}
	return nil
}
