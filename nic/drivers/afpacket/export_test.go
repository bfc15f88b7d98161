package afpacket

// Queues returns pointers to all queues.
func (d *Device) Queues() (all []any) {
	for _, q := range d.queues {
		all = append(all, q)
	}
	return all
}
