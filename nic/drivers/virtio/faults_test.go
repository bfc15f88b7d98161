package virtio_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

func rig(t *testing.T, m *virtiosim.Model) (far *sim.Cable, fn *sim.Function) {
	t.Helper()
	port := must.Get(sim.New(m, sim.Options{Name: "test"}))(t)
	near, far := sim.Pair()
	port.Connect(near)
	f := must.Get(port.Function())(t)
	port.StartVirtual()
	t.Cleanup(func() {
		port.Stop()
		for _, v := range port.Violations() {
			t.Error("violation:", v)
		}
		port.Close()
	})
	return far, f
}

func answered(t *testing.T, far *sim.Cable) {
	t.Helper()
	await.Until(t, "an answer", func() bool {
		far.Send(0, nictest.EchoRequest(80))
		return far.Recv(0) != nil
	})
}

// TestRestarts: device faults are detected, counted by reason and repaired by a restart, after which the device answers
// again.
func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		reason string
		ail    func(m *virtiosim.Model)
	}{
		{"needs_reset", (*virtiosim.Model).NeedReset},
		{"bad_ring", (*virtiosim.Model).Lie},
		{"tx_hang", (*virtiosim.Model).Stall},
	} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/packed=%v", c.reason, packed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := virtiosim.New(virtiosim.Options{Packed: packed})
					far, fn := rig(t, m)
					d := must.Get(virtio.Open(fn, nic.Options{MAC: [6]byte(nictest.EchoRequest(80))}))(t)
					r := nictest.NewResponder(t)
					stop := nictest.ServeVirtual(d.Gate(), func() { d.Queue(0).Poll(r) })
					answered(t, far)
					c.ail(m)
					var s nic.Stats
					await.Until(t, "the restart", func() bool {
						far.Send(0, nictest.EchoRequest(80))
						must.OK(t, d.ReadStats(&s))
						return s.Extra["resets_"+c.reason] > 0
					})
					for far.Recv(0) != nil {
					}
					answered(t, far)
					if s.RxFrames == 0 || s.TxBytes == 0 {
						t.Errorf("the counts of before the restart are gone: %+v", s)
					}
					check.OK(t, stop())
					must.Close(t, d)
				})
			})
		}
	}
}

// TestOpenRefuses: the error for an unsupported device says what is wrong and what is required.
func TestOpenRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mac := [6]byte{2, 0, 0, 0, 0, 1}
		for _, c := range []struct {
			name   string
			device virtiosim.Options
			picky  bool
			o      nic.Options
			want   string
		}{
			{"legacy", virtiosim.Options{Lacks: virtiosim.Bits(32)}, false, nic.Options{}, "VIRTIO_F_VERSION_1"},
			{"features", virtiosim.Options{}, true, nic.Options{}, "FEATURES_OK should be set"},
			{"queues", virtiosim.Options{}, false, nic.Options{Queues: 5}, "5 queue pairs requested, the device has 4"},
			{"no MQ", virtiosim.Options{Lacks: virtiosim.Bits(22)}, false, nic.Options{Queues: 2}, "2 queue pairs requested, the device has 1"},
			{"MQ without a control queue", virtiosim.Options{Lacks: virtiosim.Bits(17)}, false, nic.Options{Queues: 2}, "the device has 1"},
			{"MTU", virtiosim.Options{}, false, nic.Options{MTU: 9001}, "MTU 9001 is not within 68 to 9000"},
			{"ring", virtiosim.Options{}, false, nic.Options{RingSize: 512}, "ring size 512 is not a power of two within 64 to 256"},
			{"short rings", virtiosim.Options{Limit: 32}, false, nic.Options{}, "take 32 entries, 64 are needed"},
			{"odd rings that stay", virtiosim.Options{Packed: true, Limit: 200, Fixed: true}, false, nic.Options{}, "keeps its queue_size of 200"},
			{"MAC", virtiosim.Options{Lacks: virtiosim.Bits(23)}, false, nic.Options{MAC: mac}, "VIRTIO_NET_F_CTRL_MAC_ADDR"},
			{"no MAC", virtiosim.Options{Lacks: virtiosim.Bits(5)}, false, nic.Options{}, "VIRTIO_NET_F_MAC"},
		} {
			m := virtiosim.New(c.device)
			m.RefuseFeatures(c.picky)
			_, fn := rig(t, m)
			check.Fails(t, c.name, check.Err(virtio.Open(fn, c.o)), nil, c.want)
		}
	})
}

// TestOpenTakes: devices that offer less, or whose filters cannot be set, still work.
func TestOpenTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			device virtiosim.Options
			refuse bool
			o      nic.Options
			mtu    int
			ring   string
		}{
			{"all", virtiosim.Options{Packed: true, NotificationData: true}, false, nic.Options{Queues: 4}, 9000, "packed rings of 256"},
			{"the least", virtiosim.Options{Lacks: virtiosim.Bits(3, 16, 17, 18, 22, 23, 63)}, false, nic.Options{}, 1500, "split rings of 256"},
			{"short rings", virtiosim.Options{Limit: 64}, false, nic.Options{MTU: 1400}, 1400, "split rings of 64"},
			{"rings that stay", virtiosim.Options{Fixed: true}, false, nic.Options{RingSize: 64}, 9000, "split rings of 256"},
			{"packed rings that stay", virtiosim.Options{Packed: true, Fixed: true}, false, nic.Options{RingSize: 64, Queues: 2}, 9000, "fell back from rings of 64"},
			{"odd rings", virtiosim.Options{Packed: true, Limit: 200}, false, nic.Options{}, 9000, "packed rings of 128"},
			{"a filter that is refused", virtiosim.Options{}, true, nic.Options{}, 9000, "split rings of 256"},
		} {
			m := virtiosim.New(c.device)
			m.RefuseMAC(c.refuse)
			far, fn := rig(t, m)
			t.Log(c.name)
			d := must.Get(virtio.Open(fn, c.o))(t)
			i := d.Info()
			if notes := strings.Join(i.Notes, "; "); i.MTU != c.mtu || i.MAC != "02:00:00:00:00:09" &&
				c.name != "the least" || !strings.Contains(notes, c.ring) {
				t.Errorf("%s: %+v, want an MTU of %d, %s", c.name, i, c.mtu, c.ring)
			}
			if l, err := d.Link(); err != nil || !l.Up {
				t.Errorf("%s: link %+v, %v", c.name, l, err)
			}
			must.OK(t, d.Send(nictest.EchoRequest(80)))
			await.Until(t, c.name+": the frame is sent", func() bool { return far.Recv(0) != nil })
			if c.refuse { // then it must receive all frames, such as this one for another process
				buf, n := make([]byte, 2048), 0
				await.Holds(func() bool {
					far.Send(0, nictest.EchoRequest(80))
					n, _, _ = d.Recv(buf)
					return n > 0
				})
				check.Equal(t, n, 80, "%d bytes of a frame for others come in")
			}
			must.Close(t, d)
		}
	})
}
