package campaign

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// target is the device or interface that the responder uses, and the source of requests to it.
type target interface {
	asker
	args() []string // the responder's arguments
	left() []string // objects still held after the responder has ended
	close() []string
}

// Addresses of every target that uses frames.
var (
	ourMAC   = [6]byte{2, 0x52, 0x62, 0x4e, 0x49, 1}
	theirMAC = [6]byte{2, 0x52, 0x62, 0x4e, 0x49, 9}
	ours4    = netip.MustParseAddr("10.77.0.2")
	theirs4  = netip.MustParseAddr("10.77.0.1")
	ours6    = netip.MustParseAddr("fd77::2")
	theirs6  = netip.MustParseAddr("fd77::1")
)

const addresses = `respond.addresses=["10.77.0.2/24", "fd77::2/64"]`

// probes builds requests of one kind, chosen by a seed, and checks every byte of the replies.
type probes struct {
	codec *probe.Codec
	what  string
	reply probe.Reply
}

func newProbes(r *rand.Rand, mac [6]byte, most int) (probes, error) {
	f := probe.Flow{Proto: []probe.Proto{probe.ICMP, probe.UDP, probe.STAMP}[r.IntN(3)], SrcMAC: theirMAC, DstMAC: mac,
		Src: theirs4, Dst: ours4,
		SrcPort: 40000, DstPort: 7, ID: 77, Run: r.Uint32()}
	if f.Proto == probe.STAMP {
		f.DstPort = 862
	}
	if r.IntN(2) == 1 {
		f.Src, f.Dst = theirs6, ours6
	}
	low := probe.MinSize(f.Proto, f.Src.Is6())
	f.Size = low + r.IntN(2)*r.IntN(most-low)
	c, err := probe.New(f)
	return probes{codec: c, what: fmt.Sprintf("%v over %v, %d bytes", f.Proto,
		map[bool]string{false: "IPv4", true: "IPv6"}[f.Src.Is6()], f.Size)}, err
}

// judge returns the request that a frame answers, and what is wrong with it. ours is false if the frame is not a reply
// to a probe.
func (p *probes) judge(frame []byte) (seq uint32, wrong string, ours bool) {
	switch p.codec.Check(frame, &p.reply) {
	case probe.Good, probe.Unsummed:
		return p.reply.Seq, "", true
	case probe.Corrupt:
		return 0, fmt.Sprintf("a reply with a wrong %v: %x", p.reply.Field, frame), true
	}
	return 0, "", false
}

// served is a device model served over vfio-user.
type served struct {
	model    sim.Model
	firmware *catalogue.Firmware // nil if the model has no such switches
	faulty   *sim.Faulty
	port     *sim.Port
	wire     *sim.Impaired
	far      *sim.Cable
	path     string
	server   *vfioserver.Server
	log      *slog.Logger
}

func serve(c *campaign, name string, m sim.Model, r *rand.Rand) (*served, error) {
	s := &served{model: m, faulty: sim.Inject(m, r.Uint64()),
		path: filepath.Join(c.work, fmt.Sprintf("%s-%d.sock", name, c.parts)), log: c.simLog}
	var err error
	if s.port, err = sim.New(s.faulty, sim.Options{Name: name, Seed: r.Uint64() | 1}); err != nil {
		return nil, err
	}
	near, far := sim.Pair()
	s.far = far
	s.wire = sim.Impair(near, sim.Impairment{Seed: r.Uint64()})
	s.port.Connect(s.wire)
	s.port.Start()
	if err := s.listen(); err != nil {
		s.port.Close()
		return nil, err
	}
	return s, nil
}

func (s *served) listen() (err error) {
	s.server, err = vfioserver.Listen(s.path, s.port, s.log)
	return err
}

// left waits for the server to notice that its client has disconnected.
func (s *served) left() (all []string) {
	for end := time.Now().Add(10 * time.Second); (s.port.Mappings() > 0 || s.port.BusMaster()) &&
		time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := s.port.Mappings(); n > 0 {
		all = append(all, fmt.Sprintf("%d DMA mappings", n))
	}
	if s.port.BusMaster() {
		all = append(all, "bus mastering is on")
	}
	return all
}

func (s *served) close() (all []string) {
	if s.server != nil {
		s.server.Close()
	}
	s.port.Stop()
	s.port.Connect(nil)
	s.port.Close()
	if _, err := os.Lstat(s.path); err == nil {
		all = append(all, "the socket "+s.path)
	}
	return all
}

// card is a model of an Ethernet card.
type card struct {
	*served
	probes
	driver string
}

func openCard(row *catalogue.Card) func(*campaign, *rand.Rand) (target, error) {
	return func(c *campaign, r *rand.Rand) (target, error) {
		p, err := newProbes(r, ourMAC, 1514)
		if err != nil {
			return nil, err
		}
		f := &catalogue.Firmware{}
		s, err := serve(c, row.Name, row.Make(ourMAC, r, f), r)
		if err != nil {
			return nil, err
		}
		s.firmware = f
		return &card{s, p, row.Driver}, nil
	}
}

func (c *card) String() string {
	id := c.port.Config()
	return fmt.Sprintf("%04x:%04x, %s", id.Vendor, id.Device, c.what)
}

func (c *card) args() []string {
	return []string{"nic.driver=" + c.driver, "nic.device=vfio-user:" + c.path, addresses, "respond.stamp_ports=[862]"}
}

func (c *card) ask(seq uint32) bool {
	if !c.far.Up() {
		return false
	}
	c.far.Send(0, c.codec.Build(seq, 0))
	return true
}

func (c *card) take() (seq uint32, wrong string, any bool) {
	for {
		f := c.far.Recv(0)
		if f == nil {
			return 0, "", false
		}
		if seq, wrong, ours := c.judge(f); ours {
			return seq, wrong, true
		}
	}
}

func (c *card) silent() {}
