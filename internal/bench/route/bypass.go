package route

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Bypassed returns warnings about what is configured with tc on the path's interface and does not apply to raw frames.
// qdisc means that they are sent through the interface's queueing discipline.
func (p *Path) Bypassed(qdisc bool) (warnings []string) {
	if p.Index == 0 { // not an interface of the kernel
		return nil
	}
	egress, ingress, err := netif.TrafficControl(p.Interface)
	if err != nil {
		return []string{fmt.Sprintf("unknown whether raw frames bypass a queueing discipline (tc): %v", err)}
	}
	if egress != "" && !qdisc {
		warnings = append(warnings,
			fmt.Sprintf("raw frames bypass what tc has configured on %s (%s), which may delay or drop packets of sockets (send through it: -qdisc)",
				p.Interface, egress))
	}
	if ingress != "" {
		warnings = append(warnings,
			fmt.Sprintf("raw frames are received before tc's ingress filters on %s (%s), which may delay or drop packets to sockets "+
				"(receive behind them: -transport socket)", p.Interface, ingress))
	}
	return warnings
}
