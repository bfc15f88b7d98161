package fastpath

import "fmt"

// Rules are a Config in a form for other implementations, such as nic/drivers/xdp's program in the kernel. Addresses
// and ports are as a little-endian machine loads them, and sets have a bit for each member.
type Rules struct {
	Own4          []uint32
	Not4          []uint32    // invalid as sources: our addresses and our subnets' broadcast addresses
	Own6          [][2]uint64 // the upper half first
	Echo, STAMP   [1 << 16 / 64]uint64
	Service       [1 << 16 / 64]uint64 // source ports that are not answered
	VLANs         [1 << 12 / 64]uint64
	ChecksumBytes int // 0 in Open

	// The rate limit, as allow uses it: in 1/16 of Config's ticks.
	Cost, Burst, Most, Idle uint64

	// The guard against loops: equal datagrams, and the time in ticks.
	Loop   uint32
	Window uint64
}

// Rules returns the rules of c, the error that New returns for it, or an error if these rules do not support c.
func (c *Config) Rules() (*Rules, error) {
	if what := c.Beyond(); what != "" {
		return nil, fmt.Errorf("%w: the rules for a program elsewhere are not those of %s", ErrConfig, what)
	}
	r, err := New(*c)
	if err != nil {
		return nil, err
	}
	t := &Rules{
		Echo: r.echo, Service: r.service, VLANs: r.vlans, ChecksumBytes: r.checksumBytes,
		Cost: r.limit.cost, Burst: r.limit.burst, Most: r.limit.most, Idle: r.limit.idle,
		Loop: r.repeats.most, Window: r.repeats.window,
	}
	for i, a := range r.own4 {
		if a*r.mul4>>shift4 == uint32(i) {
			t.Own4 = append(t.Own4, a)
		}
	}
	for i, a := range r.not4 {
		if a*r.mul4>>shift4 == uint32(i) {
			t.Not4 = append(t.Not4, a)
		}
	}
	for i, a := range r.own6 {
		if (a.hi+a.lo*r.mul6)*r.mul6>>shift6 == uint64(i) {
			t.Own6 = append(t.Own6, [2]uint64{a.hi, a.lo})
		}
	}
	var stamp portSet
	for _, p := range c.STAMPPorts {
		stamp.add(p)
	}
	t.STAMP = stamp
	return t, nil
}
