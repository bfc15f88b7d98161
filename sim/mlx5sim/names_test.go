package mlx5sim

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestTraceNames(t *testing.T) {
	x := newRig(t, Options{})
	x.Port.StartTrace(1000)
	x.open()
	x.do(dwords(32, 0, 0x0805_0000, 8, regPMTU, 16, 1<<16, 24, 9000<<16), 32)
	x.Clean()
	x.fails(dwords(32, 0, 0x0805_0000, 8, regPMTU, 16, 1<<16, 24, 1<<16), 32, stBadParam, "PMTU: admin_mtu")
	var text strings.Builder
	x.Port.Trace().WriteTo(&text)
	check.Contains(t, text.String(), "write      command_doorbell_vector (BAR 0 00018h) = 00000001h",
		"command    CREATE_EQ, status 0h:", " log_eq_size=",
		"command    ACCESS_REG PMTU, status 0h: local_port=1 admin_mtu=2328\n", "\nACCESS_REG PMTU.admin_mtu = 2328h\n")
	x.wr(0, 1)    // fw_rev is read only
	for range 2 { // a requested trace does not change the next one
		text.Reset()
		x.Port.Trace().WriteTo(&text)
		_, before, _ := strings.Cut(text.String(), "what led to the first violation\n")
		before, _, _ = strings.Cut(before, "#")
		if want := "write      fw_rev (BAR 0 00000h) = 00000001h\n"; !strings.Contains(before, want) {
			t.Errorf("%q is not in what led to the violation:\n%s", want, before)
		}
	}
	x.ExpectViolation("write of 00000001 to fw_rev")
	for off, want := range map[uint64]string{0x10020: "UAR[16].cq", 0x10908: "UAR[16].bf[1][08h]",
		0x204: "health_buffer[1]", 0x1020: ""} {
		if n, _ := x.m.RegisterName(0, off); n != want {
			t.Errorf("%#x is called %q, want %q", off, n, want)
		}
	}
}
