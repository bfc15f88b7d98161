package ena

import "fmt"

// evidence requests what a probe file contains in addition to what Open needs: every feature that the device announces
// and that fits the completion. The answers are in the trace.
func (d *Device) evidence() {
	for id := uint8(1); id < 32; id++ {
		version := uint8(0)
		switch id {
		case featRSSHash, featRSSTable, featRSSInput, featHost, featStrings: // they answer in memory, or to SET only
			continue
		case featMaxQueuesX:
			version = maxQueuesXVers
		}
		if d.has(id) {
			d.get(fmt.Sprintf("feature %d", id), id, version, 0)
		}
	}
	d.basic()
	d.allowanceCounts()
}

const featStrings = 5 // ENA_ADMIN_EXTRA_PROPERTIES_STRINGS
