package mlx4

// evidence requests what a probe file contains in addition to what Open needs: the board, and each port. The answers
// are in the trace.
func (d *Device) evidence() {
	d.commands.query(opQueryAdapter, 0, 0)
	for port := range d.caps.ports {
		d.commands.query(opQueryPort, 0, port+1)
	}
}
