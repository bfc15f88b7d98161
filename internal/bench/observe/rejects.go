package observe

import (
	"bufio"
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

// Rejects selects the replies that the kernel may reject before they reach a Source: a socket, or an XDP program that
// passes everything but intact replies with our identifiers to the kernel. The zero value is for a transport that sees
// every frame.
type Rejects struct {
	Echo, UDP, V4, V6 bool

	// Identifiers is set to count intact echo replies that the Source did not get, because they have another
	// identifier. The Source must have received everything when it is read.
	Identifiers bool
}

// ipReasons are the kernel's counters of received packets that it rejected below ICMP and UDP, and echoReasons and
// udpReasons those above, by their names in /proc/net/snmp and netstat. Names starting with a minus are subtracted:
// they count frames that were intact, but had no room.
var (
	ipReasons   = []string{"Ip InHdrErrors", "Ip InAddrErrors", "IpExt InTruncatedPkts"}
	echoReasons = []string{"Icmp InErrors"}
	udpReasons  = []string{"Udp NoPorts", "Udp InErrors -RcvbufErrors -MemErrors"}

	// The same for IPv6, in /proc/net/snmp6.
	ip6Reasons   = []string{"Ip6InHdrErrors", "Ip6InAddrErrors", "Ip6InTruncatedPkts"}
	echo6Reasons = []string{"Icmp6InErrors"}
	udp6Reasons  = []string{"Udp6NoPorts", "Udp6InErrors -Udp6RcvbufErrors -Udp6MemErrors"}
)

// Intact echo replies, of which a ping socket gets those with its identifier.
const echoReplies, echoReplies6 = "Icmp InEchoReps", "Icmp6InEchoReplies"

// rejected reads how many packets the kernel of this thread's network namespace has rejected so far.
func (from Source) rejected() (out []report.Drop) {
	r := from.Rejects
	if !r.Echo && !r.UDP { // every frame is seen: nothing can be missing
		if from.Device != nil || from.Socket != nil {
			out = append(out, report.Drop{Place: report.Unknown, By: "none"})
		}
		return out
	}
	var names []string
	for _, g := range []struct {
		on    bool
		names []string
	}{{r.V4, ipReasons}, {r.V4 && r.Echo, echoReasons}, {r.V4 && r.UDP, udpReasons}, {r.V6, ip6Reasons},
		{r.V6 && r.Echo, echo6Reasons}, {r.V6 && r.UDP, udp6Reasons},
		{r.V4 && r.Identifiers, []string{echoReplies}}, {r.V6 && r.Identifiers, []string{echoReplies6}}} {
		if g.on {
			names = append(names, g.names...)
		}
	}
	all := map[string]int64{}
	for _, name := range []string{"snmp", "netstat", "snmp6"} {
		if b, err := os.ReadFile("/proc/thread-self/net/" + name); err == nil {
			maps.Copy(all, counters(b))
		}
	}
	for _, name := range names {
		parts := strings.Split(name, " -")
		n, ok := all[parts[0]]
		if !ok {
			continue
		}
		family, _, _ := strings.Cut(parts[0], " ")
		for _, less := range parts[1:] {
			n -= all[less] + all[family+" "+less]
		}
		out = append(out, report.Drop{Place: report.Unknown, By: "kernel: " + parts[0], Frames: max(n, 0)})
	}
	return out
}

// counters parses /proc/net/snmp and netstat, which have a line of names and one of values for each protocol ("Icmp
// InErrors"), or snmp6, which has a name and a value in each line.
func counters(b []byte) map[string]int64 {
	out := map[string]int64{}
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 2 && !strings.HasSuffix(f[0], ":"):
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				out[f[0]] = n
			}
		case len(f) > 1 && len(names) == len(f) && names[0] == f[0]:
			for i, text := range f[1:] {
				if n, err := strconv.ParseInt(text, 10, 64); err == nil {
					out[strings.TrimSuffix(f[0], ":")+" "+names[i+1]] = n
				}
			}
			names = nil
		default:
			names = f
		}
	}
	return out
}

// others takes the replies that a socket delivered out of the echo replies that the kernel received.
func others(drops []report.Drop, delivered int64) {
	for i := range drops {
		if d := &drops[i]; d.By == "kernel: "+echoReplies || d.By == "kernel: "+echoReplies6 {
			d.Frames = max(d.Frames-delivered, 0)
		}
	}
}

// broken takes the datagrams with a bad checksum out of the drops of a socket: it counts them together with those for
// which it had no room. The kernel's counter of rejected datagrams has them, too.
func broken(drops []report.Drop) {
	rejected := int64(0)
	for _, d := range drops {
		if d.By == "kernel: Udp InErrors" || d.By == "kernel: Udp6InErrors" {
			rejected += d.Frames
		}
	}
	if i := slices.IndexFunc(drops, func(d report.Drop) bool { return d.By == "socket: sk_drops" }); i >= 0 {
		drops[i].Frames -= min(rejected, drops[i].Frames)
	}
}
