package campaign

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// messages is an EFA whose responder gets requests from a driver in this process, on a second EFA at the other end of
// the wire.
type messages struct {
	*served
	c       *campaign
	service nic.Service
	size    int
	tag     uint32
	buf     []byte

	peerPort *sim.Port
	client   *efa.Device

	mu    sync.Mutex
	hand  string // where the responder publishes its addresses
	to    nic.Peer
	reach bool
}

func openEFA(c *campaign, r *rand.Rand) (target, error) {
	p := efasim.Profiles()[r.IntN(len(efasim.Profiles()))]
	m := &messages{c: c, service: nic.Service(r.IntN(2)), size: 8 + r.IntN(2)*r.IntN(4000), tag: r.Uint32(),
		buf: make([]byte, 16<<10)}
	var err error
	if m.served, err = serve(c, "efa", efasim.New(efasim.Options{MAC: ourMAC, Profile: p, Seed: r.Uint64(),
		AdminDelay: time.Duration(r.IntN(2)) * time.Millisecond, AdminOutOfOrder: r.IntN(2) == 1}), r); err != nil {
		return nil, err
	}
	if m.peerPort, err = sim.New(efasim.New(efasim.Options{MAC: theirMAC, Profile: p, Seed: r.Uint64()}),
		sim.Options{Name: "efa-client", Seed: r.Uint64() | 1}); err != nil {
		m.served.close()
		return nil, err
	}
	m.peerPort.Connect(m.far)
	m.peerPort.Start()
	fn, err := m.peerPort.Function()
	if err == nil {
		m.client, err = efa.Open(fn, nic.Options{Log: c.simLog}, efa.Options{Services: []nic.Service{m.service}})
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *messages) String() string {
	return fmt.Sprintf("%04x, %v, %d bytes", m.port.Config().Device, m.service, m.size)
}

func (m *messages) args() []string {
	return []string{"nic.driver=efa", "nic.device=vfio-user:" + m.path, "respond.handover=127.0.0.1:0"}
}

var handedOver = regexp.MustCompile(`handover=(\S+)`)

// silent looks up the responder again, because its queue pairs have other numbers after a restart.
func (m *messages) silent() {
	line := m.c.readyLine()
	all := handedOver.FindStringSubmatch(line)
	if all == nil {
		return
	}
	at := regexp.MustCompile(m.service.String() + `@([0-9.:]+)`).FindStringSubmatch(all[1])
	if at == nil {
		return
	}
	address, err := netip.ParseAddrPort(at[1])
	if err != nil {
		return
	}
	own := m.client.Endpoints()[0].Address
	var peer nic.Address
	err = m.c.space.Do(func() (err error) {
		peer, err = handover.Exchange(address, own)
		return err
	})
	if err != nil {
		return
	}
	m.to, err = m.client.Resolve(peer)
	m.reach = err == nil
}

func (m *messages) message(seq uint32) []byte {
	b := m.buf[:m.size]
	binary.LittleEndian.PutUint32(b, m.tag)
	binary.LittleEndian.PutUint32(b[4:], seq)
	for i := 8; i < len(b); i++ {
		b[i] = byte(seq*7 + uint32(i)*13)
	}
	return b
}

func (m *messages) ask(seq uint32) bool {
	return m.reach && m.client.Send(m.service, m.to, m.message(seq)) == nil
}

func (m *messages) take() (seq uint32, wrong string, any bool) {
	var in [8 << 10]byte
	n, _, err := m.client.Recv(in[:])
	if n <= 0 || err != nil {
		return 0, "", false
	}
	if n < 8 || binary.LittleEndian.Uint32(in[:]) != m.tag {
		return 0, fmt.Sprintf("a message of %d bytes that nobody sent", n), true
	}
	seq = binary.LittleEndian.Uint32(in[4:])
	if !bytes.Equal(in[:n], m.message(seq)) {
		return 0, fmt.Sprintf("a message of %d bytes with other content", n), true
	}
	return seq, "", true
}

func (m *messages) close() (all []string) {
	if m.client != nil {
		if err := m.client.Close(); err != nil {
			all = append(all, "the client: "+err.Error())
		}
	}
	m.peerPort.Stop()
	m.peerPort.Close()
	return append(all, m.served.close()...)
}
