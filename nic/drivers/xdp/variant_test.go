package xdp

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// Every variant passes the verifier; those that use the driver's metadata are tested on an interface whose driver
// provides it.
func TestVariants(t *testing.T) {
	needs.Root(t, "loading an XDP program")
	v := veth.New(t)
	var i *netif.Interface
	var f xdpkit.Features
	var err error
	v.Host.Do(func() {
		if i, err = netif.Lookup(v.Host.Name); err == nil {
			f = xdpkit.AskFeatures(i.Index)
		}
	})
	must.OK(t, err)
	defer i.Close()
	t.Logf("%s: %v", i.Driver, f)
	if !f.Known || !f.Has(xdpkit.Basic|xdpkit.Frags) {
		t.Errorf("veth says of its features: %v", f)
	}
	o := must.Get(newObject())(t)
	m := must.Get(o.newMaps())(t)
	defer m.close()
	for _, w := range []variant{{}, {frags: true}, {tag: true}, {stamps: true}, {tag: true, stamps: true},
		{tag: true, stamps: true, frags: true}} {
		if w.bound() {
			if !f.Tells(xdpkit.Timestamp | xdpkit.VLANTag) {
				t.Logf("%+v: this kernel's veth does not tell: %v", w, f)
				continue
			}
			w.ifindex = i.Index
		}
		c := config()
		c.STAMPBase = true
		v.Host.Do(func() { // a program is bound to an interface of the thread's network namespace
			p, err := o.load(c, w, m)
			if err != nil {
				t.Errorf("%+v: %+v", w, err)
				return
			}
			defer p.Close()
			// Each instruction costs a start a quarter of a microsecond. The kernel gives up at a million, and another
			// kernel's verifier takes other paths.
			about, err := p.Info()
			if err != nil {
				t.Error(err)
				return
			}
			most := uint32(150_000)
			if w.tag || w.stamps {
				most = 300_000
			}
			if n, ok := about.VerifiedInstructions(); ok && n > most {
				t.Errorf("%+v: the verifier walks %d instructions, more than %d", w, n, most)
			} else {
				t.Logf("%+v: the verifier walks %d instructions", w, n)
			}
		})
	}
}

// A kernel without types says only that an argument is invalid.
func TestNeedsTypes(t *testing.T) {
	refused := errors.New("invalid argument")
	missing := filepath.Join(t.TempDir(), "vmlinux")
	check.Fails(t, "without types", needsTypes(refused, missing), refused, "CONFIG_DEBUG_INFO_BTF")
	check.OK(t, needsTypes(nil, missing))
	check.Equal(t, needsTypes(refused, "variant_test.go"), refused, "with types: %v")
}

func TestRate(t *testing.T) {
	const second = 1_000_000_000
	for _, c := range []struct {
		a, b sample
		want uint64
	}{
		{sample{}, sample{5 * second, 9 * second}, 0},
		{sample{second, second}, sample{2 * second, 2 * second}, 1 << 32},
		{sample{second, second}, sample{2 * second, 2*second + 500_000}, 1<<32 + 2147483},
		{sample{second, second}, sample{2 * second, 2*second + 2_000_000}, 0},
		{sample{second, second}, sample{second, 2 * second}, 0},
		{sample{2 * second, second}, sample{second, 2 * second}, 0},
		{sample{second, 2 * second}, sample{2 * second, second}, 0},
		{sample{second, second}, sample{9 * second, 9 * second}, 0},
	} {
		if got := rate(c.a, c.b); got != c.want {
			t.Errorf("%+v to %+v: rate %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
