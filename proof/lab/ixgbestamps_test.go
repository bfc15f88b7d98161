package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

const ixgbeStampsScript = pairHelpers + `
count=20
there stamps receive $far $count 10.9.0.2 >/tmp/received 2>&1 &
receiver=$!
until_true 100 there grep -q ':013F ' /proc/net/udp
stamps send $dev $count $peer >/tmp/sent 2>&1 || { show failed cat /tmp/sent /tmp/received; show failed dmesg; show failed ethtool -S $dev; fail "sender"; }
wait $receiver || { show failed cat /tmp/received; fail "receiver"; }
show sent cat /tmp/sent
show received cat /tmp/received
`

// TestLabIxgbeStamps has Linux's driver timestamp PTP messages by the clocks of two models: "go test ./proof/lab -run
// LabIxgbeStamps".
func TestLabIxgbeStamps(t *testing.T) {
	guests(t)
	beside(t, "ixgbe/F2", func(t *testing.T) {
		s := newScene(t)
		s.pair(ixgbeCard, ixgbeCard.model, ixgbeCard.model)
		r, err := s.play(Machine{Limit: 100 * time.Second, Files: s.programs("stamps"),
			Script: fmt.Sprintf("module=%s peer=10.9.0.1\n%s", ixgbeCard.module, ixgbeStampsScript)}, "sent",
			"received")
		must.OK(t, err)
		for _, key := range []string{"sent", "received"} {
			last := int64(0)
			for _, line := range r[key] {
				var before, stamp, after int64
				if _, err := fmt.Sscan(line, &before, &stamp, &after); err != nil || before < last || stamp <= before ||
					after < stamp {
					t.Errorf("%s: clock, timestamp and clock are not in this order: %s (%v)", key, line, err)
				}
				last = after
			}
			if len(r[key]) != 20 {
				t.Errorf("%d messages %s, want 20: %s", len(r[key]), key, strings.Join(r[key], "; "))
			}
		}
		proven(t, "F2", "Linux ixgbe, on both ends", "20 PTP messages with the cards' timestamps")
	})
}
