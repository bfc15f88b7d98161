package netif

import (
	"os"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// TestNeeded compares the parsing of routes and sockets with this machine: it must find the interface of the default
// route.
func TestNeeded(t *testing.T) {
	t.Setenv("SSH_CONNECTION", "127.0.0.1 40000 127.0.0.1 22") // loopback needs no card
	needed := must.Get(Needed())(t)
	table, err := os.ReadFile("/proc/net/route")
	if err != nil {
		t.Skip("no /proc/net/route:", err)
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" && needed[f[0]] == "" {
			t.Errorf("%s carries the default route, Needed = %v", f[0], needed)
		}
	}
	check.Equal(t, needed["lo"], "", "lo %s")
}

func TestEstablishedPeers(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 020000C0:0016 0A0200C0:C350 01 00000000:00000000 02:00000000 00000000
   2: 020000C0:01BB 0B0200C0:C351 01 00000000:00000000 02:00000000 00000000
   3: 020000C0:0016 0C0200C0:C352 06 00000000:00000000 02:00000000 00000000
   4: 0000000000000000FFFF0000020000C0:0016 0000000000000000FFFF00000D0200C0:C353 01 0
   5: B80D0120000000000000000001000000:0016 B80D0120000000000000000002000000:C354 01 0
   6: nonsense:0016 nonsense:0001 01
`
	var got []string
	for _, a := range establishedPeers([]byte(table), 22) {
		got = append(got, a.String())
	}
	check.Same(t, got, []string{"192.0.2.10", "192.0.2.13", "2001:db8::2"}, "peers %q")
}
