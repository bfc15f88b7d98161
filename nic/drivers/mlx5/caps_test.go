package mlx5

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
)

// What the driver learns from each bit of the capabilities: the file has the bits that change something, and what.
func TestEachCapability(t *testing.T) {
	f, d := startedFirmware(t)
	learn := func(kind uint32, at, bit int) []string {
		f.answer = func(in message, size int) message {
			out := working(in, size)
			if in.opcode() == opQueryHCACap && in.opMod() == kind|capCur {
				out.at(0x10)[at+3-bit/8] ^= 1 << (bit % 8)
			}
			return out
		}
		d.caps = capabilities{}
		err := d.learn()
		return append(strings.Fields(fmt.Sprintf("%+v", d.caps)), fmt.Sprint(err))
	}
	usual := learn(^uint32(0), 0, 0)
	text := fmt.Sprintln(usual)
	for _, kind := range []uint32{capGeneral, capEthernet, capFlowTable} {
		for at := 0; at < 0xb0; at += 4 {
			for bit := range 32 {
				for i, v := range learn(kind, at, bit) {
					if v != usual[i] {
						text += fmt.Sprintf("%d %02xh.%d: %s\n", kind>>1, at, bit, v)
					}
				}
			}
		}
	}
	golden.Equal(t, "testdata/capabilities.txt", text)
}
