package netif

import (
	"fmt"
	"net"
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

// An interface is needed for a default route of either family, one of several hops, and for the way to an ssh client.
func TestNeededOf(t *testing.T) {
	ip := namespace(t)
	ip("link set lo up")
	for n := range 6 {
		ip(fmt.Sprintf("link add w%d type veth peer name p%d", n, n), fmt.Sprintf("link set p%d up", n),
			fmt.Sprintf("link set w%d up", n), fmt.Sprintf("addr add 10.0.%d.1/24 dev w%d", n, n))
	}
	needs := func(client, want string) {
		t.Helper()
		t.Setenv("SSH_CONNECTION", client)
		check.Equal(t, fmt.Sprint(must.Get(Needed())(t)), "map["+want+"]", "%s")
	}
	needs("192.0.2.1 40000 10.0.0.1 22", "") // no way back
	needs("10.0.0.9 40000 10.0.0.1 22", "w0:carries the ssh session from 10.0.0.9")
	ip("route add 0.0.0.0/1 via 10.0.0.9", "route add blackhole default metric 9", "-6 route add default dev w1",
		"route add default nexthop via 10.0.2.9 nexthop via 10.0.3.9")
	const routes = "w1:carries the default route w2:carries the default route w3:carries the default route"
	needs("client 40000", routes)
	needs("10.0.4.9%w4 40000 10.0.4.1 22", routes)
	needs("10.0.4.9 40000 10.0.4.1 22", routes+" w4:carries the ssh session from 10.0.4.9")
	server := must.Get(net.Listen("tcp", "10.0.5.1:22"))(t)
	defer server.Close()
	client := must.Get(net.Dial("tcp", "10.0.5.1:22"))(t)
	defer client.Close()
	needs("", "lo:carries the ssh session from 10.0.5.1 "+routes) // this machine's own address
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
   7: 020000C0:0016 0E0200C0FF:C355 01
   8: 020000C0:0016 0E0200C00E0200C0:C355 01
   9: 020000C0:0016 0F0200C0:C356
`
	var got []string
	for _, a := range establishedPeers([]byte(table), 22) {
		got = append(got, a.String())
	}
	check.Same(t, got, []string{"192.0.2.10", "192.0.2.13", "2001:db8::2"}, "peers %q")
}
