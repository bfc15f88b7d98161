package cards

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Table returns the table of PCI functions in docs/cards/drivers.md: each driver on the device with the IDs and names
// of its functions.
func Table() string {
	var b strings.Builder
	b.WriteString("| Driver | PCI IDs | Bring-up |\n|---|---|---|\n")
	for i := range drivers {
		d := &drivers[i]
		if !d.onBus() {
			continue
		}
		var ids []string
		for device := range 1 << 16 {
			id := pci.ID{Vendor: d.vendor, Device: uint16(device)}
			if name, ok := d.supports(id); ok {
				ids = append(ids, fmt.Sprintf("%04x:%04x %s", id.Vendor, id.Device, name))
			}
		}
		page := "–"
		if d.page != "" {
			page = "[" + d.page + "](" + d.page + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.name, strings.Join(ids, "; "), page)
	}
	return b.String()
}

// Pages are the pages in docs about the first hour on a real card.
func Pages() (names []string) {
	for i := range drivers {
		if drivers[i].page != "" {
			names = append(names, drivers[i].page)
		}
	}
	return names
}
