package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
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

// ixgbeBenchScript has our bench timestamp its probes on the second function. Our responder on the first function,
// behind Linux's driver, answers them.
const ixgbeBenchScript = f3Helpers + `
up
respond -config /lab/config.toml -set nic.driver=xdp -set nic.generic_xdp=true -set nic.device=$dev -set respond.addresses=10.9.0.4/24
say ready
measure="bench run -timestamps -iface $addr -driver ixgbe -source 10.9.0.3 -closed -warmup 0s -self-test 0s -timeout 60s"
need $measure -target 10.9.0.4 -proto udp -count 200 -out /tmp/report
# summary REPORT...: the statistics of each series, a line for each number
summary() { awk 'function word(s) { gsub(/[",:]/, "", s); return s } $1 == "\"name\":" { name = word($2) } /"(count|min_ns|mean_ns)":/ { print name, word($1), word($2) }' "$@"; }
show one summary /tmp/report/report.json
need $measure -proto udp -count 100 -slice 100ms -ab target=10.9.0.4,size=80 -ab target=10.9.0.4,size=1000 -out /tmp/both
show both.0 summary /tmp/both/01-*/report.json
show both.1 summary /tmp/both/02-*/report.json
for proto in icmp stamp; do
  code=0; $measure -target 10.9.0.4 -proto $proto -count 10 -out /tmp/$proto >/tmp/refused 2>&1 || code=$?
  show refused echo "$code $(cat /tmp/refused)"
done
stop
`

// TestLabIxgbeBench has our bench timestamp round trips by the card's clock: "go test ./proof/lab -run LabIxgbeBench".
func TestLabIxgbeBench(t *testing.T) {
	guests(t)
	beside(t, "ixgbe/F3", func(t *testing.T) {
		s := newScene(t)
		s.pair(ixgbeCard, ixgbeCard.model, ixgbeCard.model)
		r, err := s.play(Machine{Limit: 150 * time.Second, IOMMU: true, Files: s.programs("responder", "bench"),
			Script: fmt.Sprintf("module=%s driver=%[1]s peer=10.9.0.1\n%s", ixgbeCard.module, ixgbeBenchScript)}, "one",
			"both.0", "both.1", "refused")
		must.OK(t, err)
		timestamped(t, r["one"], 200)
		timestamped(t, r["both.0"], 100)
		timestamped(t, r["both.1"], 100)
		if len(r["refused"]) != 2 {
			t.Fatalf("ICMP and STAMP: %q", r["refused"])
		}
		for _, refused := range r["refused"] {
			if !strings.HasPrefix(refused, "2 ") || !strings.Contains(refused, "timestamps only PTP messages") {
				t.Errorf("neither ICMP nor STAMP has timestamps on this card, and the bench said: %s", refused)
			}
		}
		proven(t, "F3", "ours, Linux ixgbe as the peer", "400 round trips by the card's timestamps; ICMP and STAMP refused")
	})
}

// timestamped checks that all round trips of a report have the card's timestamps, and are shorter by these than by the
// host's.
func timestamped(t *testing.T, summary []string, count int) {
	t.Helper()
	of := map[string]float64{}
	for _, line := range summary {
		var series, number string
		var v float64
		if _, err := fmt.Sscan(line, &series, &number, &v); err == nil {
			of[series+" "+number] = v
		}
	}
	main, card := latency.MainSeries, latency.HardwareSeries
	if of[card+" count"] != float64(count) || of[card+" min_ns"] <= 0 || of[card+" mean_ns"] >= of[main+" mean_ns"] {
		t.Errorf("want %d round trips by the card's clock, shorter than those by the host's: %v", count, of)
	}
}
