package responder

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A datagram that bounces between the responder and an echo service is refused after guard.loop times. The log says
// once what happened and what to set.
func TestLoopWithEchoService(t *testing.T) {
	for _, driver := range []string{"afpacket", "xdp"} {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver, "respond.udp_ports=[7]", "guard.loop=8")
			service := in(t, w.there, func() (net.PacketConn, error) { return net.ListenPacket("udp4", ":20001") })
			t.Cleanup(func() { service.Close() })
			go func() {
				for b := make([]byte, 100); ; {
					n, from, err := service.ReadFrom(b)
					if err != nil {
						return
					}
					service.WriteTo(b[:n], from)
				}
			}()
			if _, err := service.WriteTo([]byte("loop"), &net.UDPAddr{IP: net.ParseIP(ours4), Port: 7}); err != nil {
				t.Fatal(err)
			}
			if !p.logs("refused as a loop") || !p.logs("raise guard.loop") {
				t.Errorf("no line about the loop\n%s", p.Log)
			}
			if s := p.stop(t, unix.SIGTERM); count(t, s, "loop") != 1 {
				t.Errorf("want one datagram refused as a loop\n%s", s)
			}
		})
	}
}
