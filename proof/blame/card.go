package blame

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// card is the model of a card in another process, whose wire is an interface of the relay. The bench uses it by its own
// driver.
type card struct {
	*exec.Cmd
	said   process.Tail
	ask    io.WriteCloser
	lines  *bufio.Reader
	socket string
}

const (
	cardPriority = 45 // above all but those that plant: a card does not wait for a core
	// cardNap is how often the model looks for frames to send: often enough for pulses of 1 to 20 ms, and rarely enough
	// for the loops that it interrupts.
	cardNap = 150 * time.Microsecond
	// cardRest is what the bench has the core for between two looks, whatever waits.
	cardRest = 20 * time.Microsecond
)

// cards are the models, by the driver for them.
var cards = map[string]struct {
	name  string
	model func(mac [6]byte) sim.Model
}{
	"ixgbe": {"an 82599", func(mac [6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: mac}) }},
	"mlx5":  {"a ConnectX-5", func(mac [6]byte) sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: mac}) }},
}

// startCard starts a model whose wire is the new interface name in a namespace.
func startCard(in *testbed.Namespace, name, driver string) (c *card, err error) {
	dir, err := os.MkdirTemp("", "rebound-card-")
	if err != nil {
		return nil, err
	}
	c = &card{socket: filepath.Join(dir, "card")}
	c.Cmd = child("card", c.socket, name, driver)
	c.Stderr = &c.said
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.ask, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	c.lines = bufio.NewReader(out)
	if err = in.Do(c.Start); err == nil {
		err = c.answer()
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("the card's model: %w: %s", err, c.said.String())
	}
	return c, nil
}

// answer waits until the model has done what it was asked to.
func (c *card) answer() error {
	_, err := c.lines.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return unix.EPIPE
	}
	return err
}

// hold delays what the card writes to memory.
func (c *card) hold(d time.Duration) error {
	if _, err := fmt.Fprintln(c.ask, int64(d)); err != nil {
		return err
	}
	return c.answer()
}

func (c *card) stop() {
	if c == nil {
		return
	}
	c.ask.Close()
	if c.Process != nil {
		_ = c.Wait()
	}
	os.RemoveAll(filepath.Dir(c.socket))
}

// beCard serves a model until stdin ends. Each line of it is how long transfers are delayed from then on, in ns. It
// shares the bench's core: on the responder's, what has that core would hold up the bench's card, too, and be this
// host's.
func beCard(socket, name, driver string) error {
	debug.SetGCPercent(-1) // a collection would wait for threads that the bench keeps from the core
	var core unix.CPUSet
	core.Set(benchCore)
	if err := process.EachThread(func(tid int) error {
		return errors.Join(unix.SchedSetaffinity(tid, &core), realtime(tid, cardPriority))
	}); err != nil {
		return fmt.Errorf("bind the card's model to core %d: %w", benchCore, err)
	}
	model := sim.Inject(cards[driver].model([6]byte{2, 0x52, 0x62, 0, 0, 9}), 1)
	p, err := sim.New(model, sim.Options{Name: "card"})
	if err != nil {
		return err
	}
	tap, err := sim.OpenTap(name, 1500)
	if err != nil {
		return err
	}
	defer tap.Close()
	p.Connect(tap)
	p.StartWith(runtime.LockOSThread, func() {
		tap.Wait(cardNap)
		_ = unix.Nanosleep(&unix.Timespec{Nsec: cardRest.Nanoseconds()}, nil)
	})
	s, err := vfioserver.Listen(socket, p, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("ready")
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		var d time.Duration
		if _, err := fmt.Sscan(asked.Text(), (*int64)(&d)); err != nil {
			return err
		}
		p.Hold(func() { model.DelayDMA(d) })
		fmt.Println("done")
	}
	if all := p.Errors(); len(all) > 0 {
		return errors.New(strings.Join(all, "; "))
	}
	return nil
}

// mostHeld is how long a transfer is held up at most: at 300 probes per second no reply comes meanwhile. An 82599 keeps
// the timestamp of one received frame until it is read, so that one which comes behind it has none.
const mostHeld = 3 * time.Millisecond

// holdTransfers plants delays between the bench's card and its memory, as a busy IOMMU or memory bus causes them: in a
// pulse all that the card writes is held up for half the pulse's length.
func holdTransfers(s *scene, schedule []pulse, _ *rand.Rand) (out []pulse, err error) {
	all, err := each(s, schedule, func(end time.Time) error {
		return s.bed.card.hold(min(max(time.Until(end)/2, 0), mostHeld))
	}, func() error { return s.bed.card.hold(0) })
	for _, p := range all {
		p.to += min((p.to-p.from)/2, int64(mostHeld))
		out = append(out, p)
	}
	return out, err
}
