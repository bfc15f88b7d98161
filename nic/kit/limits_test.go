package kit

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
)

// An option beyond its limit is an error with the requested and the allowed values. Zero becomes the default.
func TestLimits(t *testing.T) {
	l := Limits{Driver: "toy", Ring: 256, MinRing: 64, MaxRing: 1024, MTU: 1500, MinMTU: 68, MaxMTU: 9000, Queues: 4}
	for _, c := range []struct {
		o    nic.Options
		says string
	}{
		{nic.Options{}, ""}, {nic.Options{RingSize: 64, MTU: 68, Queues: 4}, ""}, {nic.Options{RingSize: 1024, MTU: 9000, Queues: 1}, ""},
		{nic.Options{MAC: [6]byte{2}}, ""},
		{nic.Options{RingSize: 32}, "ring size 32 is not a power of two within 64 to 1024"}, {nic.Options{RingSize: 2048}, "2048"},
		{nic.Options{RingSize: 100}, "100"}, {nic.Options{RingSize: -64}, "-64"},
		{nic.Options{MTU: 67}, "MTU 67 is not within 68 to 9000"}, {nic.Options{MTU: 9001}, "9001"},
		{nic.Options{Queues: 5}, "5 queue pairs requested, want 1 to 4"}, {nic.Options{Queues: -1}, "-1"},
		{nic.Options{MAC: [6]byte{1}}, "01:00:00:00:00:00 is not a unicast address"},
		{nic.Options{Match: &fastpath.Config{}, Steer: &nic.Steer{}}, "both Match and Steer"},
	} {
		got, err := l.apply(c.o)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, want %q", c.o, err, c.says)
		}
		if err == nil && (got.RingSize == 0 || got.MTU == 0 || got.Queues == 0 || got.Log == nil || c.o.MTU != 0 &&
			got.MTU != c.o.MTU) {
			t.Errorf("%+v became %+v", c.o, got)
		}
	}
	check.Fails(t, "MTU", check.Err(l.apply(nic.Options{MTU: 9001})), nic.ErrFrameSize)
	l.MTU = 0
	if o, err := l.apply(nic.Options{}); err != nil || o.MTU != 0 {
		t.Errorf("an MTU that the device chooses: %+v, %v", o, err)
	}
}

// A push mode is auto, off or one of the driver's own, and a length is not negative. Both may be omitted.
func TestCheckPush(t *testing.T) {
	for _, c := range []struct {
		mode    string
		longest int
		says    string
	}{{"", 0, ""}, {"auto", 0, ""}, {"off", 1, ""}, {"llq", 96, ""}, {"", -1, "the longest frame to push is -1 bytes"},
		{"LLQ", 0, `push mode "LLQ": want one of auto, llq, off`}} {
		if err := CheckPush(c.mode, c.longest, "llq"); (err != nil) != (c.says != "") {
			t.Errorf("%q, %d bytes: %v, want %q", c.mode, c.longest, err, c.says)
		} else if err != nil {
			check.Contains(t, err.Error(), c.says)
		}
	}
}

// The stride has room for the buffer, and puts the starts of successive buffers into different cache sets.
func TestStride(t *testing.T) {
	for size := 1; size < 20000; size++ {
		if s := Stride(size); int(s) < size || s%64 != 0 || s/64%2 == 0 || int(s) >= size+128+64 {
			t.Fatalf("%d bytes: stride %d", size, s)
		}
	}
}
