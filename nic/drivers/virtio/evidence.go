package virtio

// evidence reads what a probe file contains in addition to what Open needs: every virtqueue's size, and the
// configuration fields that exist according to the device's features. The observer sees the registers.
func (d *Device) evidence() {
	offered := d.readFeatures()
	for n := range min(uint32(d.read16(regNumQueues)), 64) {
		d.size(n)
	}
	if offered&featMQ != 0 {
		d.conf16(confMaxPairs)
	}
	if offered&featMTU != 0 {
		d.conf16(confMTU)
	}
	if offered&featStatus != 0 {
		d.conf16(confStatus)
	}
}
