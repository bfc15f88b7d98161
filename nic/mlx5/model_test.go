package mlx5_test

import (
	"testing"

	"rebound/nic"
	"rebound/nic/sim/mlx5sim"
)

// The mode that is in force is proven and told, in each push mode.
func TestPushModes(t *testing.T) {
	for _, c := range []struct{ push, want string }{
		{"", "blueflame full"}, {"full", "blueflame full"}, {"header", "blueflame header"}, {"off", "doorbell off"},
	} {
		t.Run(c.push, func(t *testing.T) {
			x := newRig(t, mlx5sim.Options{})
			x.open(nic.Options{Push: c.push})
			defer x.close()
			i := x.dev.Info()
			if i.Push != c.want {
				t.Errorf("push %q, want %q\n%s", i.Push, c.want, list(i.Notes))
			}
			t.Logf("%s, %s\n%s", i.Model, i.Push, list(i.Notes))
			for _, n := range []int{60, 98, 99, 226, 227, 1514} {
				x.exchange(40, n)
			}
		})
	}
}
