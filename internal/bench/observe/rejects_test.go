package observe

import (
	"maps"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestCounters(t *testing.T) {
	got := counters([]byte("Ip: Forwarding InHdrErrors\nIp: 1 7\nIcmp: InMsgs InErrors\nIcmp: 3 2\nUdp: InDatagrams NoPorts\nUdp: 9\nIp6InHdrErrors                  \t5\nbad x\n"))
	if want := map[string]int64{"Ip Forwarding": 1, "Ip InHdrErrors": 7, "Icmp InMsgs": 3, "Icmp InErrors": 2,
		"Ip6InHdrErrors": 5}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A socket's drops include datagrams with a bad checksum, which the kernel rejected: they were not dropped for lack of
// room.
func TestBroken(t *testing.T) {
	drop := func(place report.Place, by string, n int64) report.Drop {
		return report.Drop{Place: place, By: by, Frames: n}
	}
	for _, c := range []struct{ drops, rejected, want int64 }{{5, 0, 5}, {5, 2, 3}, {5, 9, 0}} {
		all := []report.Drop{drop(report.DroppedHere, "socket: sk_drops", c.drops),
			drop(report.Unknown, "kernel: Udp InErrors", c.rejected)}
		broken(all)
		check.Same(t, all, []report.Drop{drop(report.DroppedHere, "socket: sk_drops", c.want),
			drop(report.Unknown, "kernel: Udp InErrors", c.rejected)}, "%+v")
	}
}
