package bench

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// versus measures both targets with each protocol, alternating; without UDP where a target does not echo it.
func TestVersusFlags(t *testing.T) {
	const both = "10.0.0.2 icmp,10.0.0.3 icmp,10.0.0.2 udp,10.0.0.3 udp"
	for args, want := range map[string]string{
		"10.0.0.2 10.0.0.3":                            both,
		"10.0.0.2 10.0.0.3 -rate 10k -size 256":        both,
		"10.0.0.2 10.0.0.3 -iface eth1 -port 9":        both, // not asked
		"10.0.0.2 10.0.0.3 -proto udp -port 9":         "10.0.0.2 udp,10.0.0.3 udp",
		"-port 9 10.0.0.2 10.0.0.3":                    "10.0.0.2 icmp,10.0.0.3 icmp",
		"10.0.0.2":                                     "want two different targets",
		"10.0.0.2 10.0.0.2":                            "want two different targets",
		"10.0.0.2 10.0.0.3 10.0.0.4":                   "want two different targets",
		"10.0.0.2 10.0.0.3 -ab dscp=0":                 "-ab cannot be combined with versus",
		"10.0.0.2 10.0.0.3 -lossless 1M":               "-lossless cannot be combined with versus",
		"10.0.0.2 10.0.0.3 -runs 8 -duration 4s -json": "-json cannot be combined with versus",
	} {
		e := &command.Env{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		o, targets, only, err := versusFlags(e, strings.Fields(args), func(target string, port int) string {
			if target == "10.0.0.2" || port == 7 {
				return ""
			}
			return "its port is closed"
		})
		if err != nil {
			check.Contains(t, err.Error(), want)
			continue
		}
		var names []string
		for _, v := range o.Variants {
			protocol := "icmp"
			if strings.Contains(strings.ToLower(v.Name), "udp") {
				protocol = "udp"
			}
			names = append(names, v.Target.String()+" "+protocol)
		}
		if args == "10.0.0.2 10.0.0.3 -proto udp -port 9" {
			check.Equal(t, len(names), 2, "%d variants")
			check.Equal(t, o.Variants[0].Proto.String(), "udp", "protocol %s")
			check.Equal(t, o.Variants[0].Name, "10.0.0.2 udp", "name %s")
			continue
		}
		check.Equal(t, strings.Join(names, ","), want, args+": %s")
		check.Equal(t, len(targets), 2, "%d targets")
		check.Equal(t, only != "", args == "-port 9 10.0.0.2 10.0.0.3", args+": %v that only ICMP is compared")
		check.Equal(t, o.Paired, true, "paired %v")
	}
}

func TestSilentUDP(t *testing.T) {
	c := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	port := c.LocalAddr().(*net.UDPAddr).Port
	over := make(chan struct{})
	go func() {
		defer close(over)
		b := make([]byte, 64)
		for {
			n, from, err := c.ReadFromUDP(b)
			if err != nil {
				return
			}
			c.WriteToUDP(b[:n], from)
		}
	}()
	check.Equal(t, silentUDP("127.0.0.1", port), "", "an echo: %q")
	c.Close()
	<-over
	check.Equal(t, silentUDP("127.0.0.1", port), fmt.Sprintf("its port %d is closed", port), "a closed port: %q")
}
