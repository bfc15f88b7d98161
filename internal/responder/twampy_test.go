package responder

import (
	"net/netip"
	"os/exec"
	"regexp"
	"testing"

	"github.com/rebound-nic/rebound/proof/needs"
)

// A TWAMP-Light and STAMP sender that others wrote, Nokia's twampy (BSD licence, not in Debian), loses nothing and takes
// our times for ones of a clock like its own. Its smallest packets, of 14 bytes, would draw a longer reply and are refused;
// 27 bytes of padding make room (RFC 5357 §4.2.1).
func TestSTAMPByTwampy(t *testing.T) {
	needs.Programs(t, "twampy")
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp")
	for _, to := range []string{ours4, ours6} {
		for _, padding := range []string{"27", "300"} {
			var out []byte
			w.there.do(t, func() {
				far := netip.AddrPortFrom(netip.MustParseAddr(to), 862).String()
				near := ":20000"
				if far[0] == '[' {
					near = "[::]:20000"
				}
				out, _ = exec.Command("twampy", "sender", far, near, "-c", "10", "-i", "100", "--padding", padding).CombinedOutput()
			})
			for _, way := range []string{"Outbound", "Inbound", "Roundtrip"} { // a negative or absurd delay is a wrong time
				if !regexp.MustCompile(way + `: +[0-9.]+[um]s +[0-9.]+[um]s .* 0\.0%`).Match(out) {
					t.Errorf("%s, padding %s: %s is not as it should be:\n%s", to, padding, way, out)
				}
			}
		}
	}
}
