package netif

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// plainQueues are queueing disciplines that neither delay nor drop a frame while the interface keeps up.
var plainQueues = []string{"noqueue", "pfifo_fast", "mq", "fq_codel", "fq"}

// TrafficControl describes what was configured with tc on an interface of the calling thread's network namespace, and
// that frames sent without the queueing discipline, or received by a packet socket or AF_XDP, do not meet: queueing
// disciplines other than the default ones, with those below them, and filters on egress; and filters on ingress. Each
// is "" for none. Programs that are attached as BPF links (tcx), and netfilter's hooks, are not seen.
func TrafficControl(name string) (egress, ingress string, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return "", "", fmt.Errorf("interface %s: %w", name, err)
	}
	all, err := netlink.QdiscList(l)
	if err != nil {
		return "", "", fmt.Errorf("interface %s: queueing disciplines: %w", name, err)
	}
	usual := plainQueues
	if b, err := os.ReadFile("/proc/sys/net/core/default_qdisc"); err == nil {
		usual = append(slices.Clip(usual), strings.TrimSpace(string(b)))
	}
	var out, in []string
	filters := func(parent uint32) bool {
		f, err := netlink.FilterList(l, parent)
		return err == nil && len(f) > 0
	}
	for _, q := range all {
		switch kind := q.Type(); {
		case kind == "clsact" || kind == "ingress":
			if kind == "clsact" && filters(netlink.HANDLE_MIN_EGRESS) {
				out = append(out, "clsact")
			}
			if filters(netlink.HANDLE_MIN_INGRESS) {
				in = append(in, kind)
			}
		case q.Attrs().Handle == 0: // the kernel chose it
		case !slices.Contains(usual, kind) && !slices.Contains(out, kind):
			out = append(out, kind)
		}
	}
	return strings.Join(out, ", "), strings.Join(in, ", "), nil
}
