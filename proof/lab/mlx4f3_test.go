package lab

import "testing"

// TestLabMlx4F3 is rung F3 of ConnectX-3: our responder and bench in the guest on one model, Linux's mlx4_en on the other. Linux steers by
// the table of addresses, ours by rules of the device.
func TestLabMlx4F3(t *testing.T) {
	guests(t)
	beside(t, "mlx4/F3", func(t *testing.T) { mlx4Card.f3(t, kit(t)) })
}
