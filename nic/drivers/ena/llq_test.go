package ena

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// A form of low-latency queues is known by the bits that the driver uses, whatever else the device offers.
func TestUnknownLLQ(t *testing.T) {
	const form = "offered in a form that this driver does not know: header "
	for _, c := range []struct {
		l    llqFeature
		want string
	}{
		{llqFeature{num: 2, headerHave: 3, entryHave: 1, beforeHave: 2, strideHave: 2}, ""},
		{llqFeature{num: 2, headerHave: 1, entryHave: 4, beforeHave: 15, strideHave: 3}, ""},
		{llqFeature{num: 1, headerHave: 1, entryHave: 1, beforeHave: 2, strideHave: 2}, "the device has 1"},
		{llqFeature{num: 2, headerHave: 2, entryHave: 1, beforeHave: 2, strideHave: 2},
			form + "0x2, stride 0x2, descriptors before the header 0x2"},
		{llqFeature{num: 2, headerHave: 1, entryHave: 1, beforeHave: 13, strideHave: 2},
			form + "0x1, stride 0x2, descriptors before the header 0xd"},
		{llqFeature{num: 2, headerHave: 1, entryHave: 1, beforeHave: 2, strideHave: 1},
			form + "0x1, stride 0x1, descriptors before the header 0x2"},
		{llqFeature{num: 2, headerHave: 1, entryHave: 10, beforeHave: 2, strideHave: 2},
			"entry sizes 0xa are none that this driver knows (128, 256 bytes)"},
	} {
		check.Equal(t, c.l.unknown(2), c.want, "%q")
	}
}
