package evidence

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Stage is the last step that a probe takes.
type Stage string

const (
	StageRead Stage = "read" // the device's capabilities are read
	StageUp   Stage = "up"   // it is brought up and taken down
	StageLoop Stage = "loop" // and sends one frame
)

// Effects describes what a stage changes on a PCI function, and how that is undone.
func (s Stage) Effects() []string {
	all := []string{
		"the function is reset, and its bus mastering is switched on: the device may then read and write memory of this process only, " +
			"or any memory without an IOMMU",
		"firmware or the admin queue is started, and asked what the device can do",
	}
	if s != StageRead {
		all = append(all, "queues and steering rules are created, and the link is switched on: it may go down and up")
	}
	if s == StageLoop {
		all = append(all, "one frame is sent")
	}
	return append(all, "at the end, on Ctrl-C and after a failure all of it is undone by the driver, and bus mastering is switched off; "+
		"if the process is killed, the kernel resets a vfio-pci function when its file is closed")
}

// Options are the settings of a probe.
type Options struct {
	Card  cards.Config // device, driver, its settings
	Stage Stage
	Peer  netip.Addr    // loop: the address to request by ARP; the device itself if invalid
	From  netip.Addr    // loop: this end's address
	Wait  time.Duration // for the link, and for the frame
	Mask  bool
}

var errEnough = errors.New("the probe's last stage is done")

// Run probes a device. If the device fails, the file has the reason in Error. Run returns an error only for a wrong
// device name or missing rights, before it changes anything.
func Run(ctx context.Context, o Options) (*File, error) {
	f := &File{Version: Version, Program: process.Version("responder"), Began: time.Now(), Stage: o.Stage,
		Device: o.Card.Device,
		Driver: o.Card.Driver, Host: collect("/", o.Card.Device)}
	c := o.Card
	var mu sync.Mutex // the watchdog and a register access may run concurrently
	c.Observe = func(fn pci.Function) pci.Function {
		f.ID, f.Config = fn.ID(), space(fn)
		f.Host.IOMMU = iommu(fn, f.Host.IOMMU)
		return cmdtrace.Observe(fn, cmdtrace.Observer{
			Seen: func(e cmdtrace.Entry) {
				mu.Lock()
				defer mu.Unlock()
				e.In, e.Out = bytes.Clone(e.In), bytes.Clone(e.Out)
				f.Trace = append(f.Trace, e)
			},
			Before: func(step string) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				if o.Stage == StageRead && step == kit.Learned.Name {
					return errEnough
				}
				return nil
			},
		})
	}
	// as the kernel shows it, which vfio-pci changes while the function is open: it sets INTx Disable
	var before ConfigHex
	if !strings.HasPrefix(c.Device, simulated) {
		before, _ = reread(c.Device)
	}
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	err := f.run(ctx, &c, o)
	f.Took = time.Since(f.Began)
	if f.ID == (pci.ID{}) && err != nil && cards.IsPCIDevice(c.Device) {
		return nil, err // it was not even opened
	}
	if err != nil && !errors.Is(err, errEnough) {
		f.Error = err.Error()
	}
	f.Changed = f.compare(c.Device, before)
	f.Log = log.String()
	if f.Driver == "auto" {
		f.Driver = cards.DriverFor(f.ID)
	}
	if o.Mask {
		f.mask()
	}
	return f, nil
}

func (f *File) run(ctx context.Context, c *cards.Config, o Options) (err error) {
	port, err := c.OpenAnswerer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.Close()) }()
	info := port.Info()
	f.Info, f.Driver, f.Host.MemoryTypes = &info, info.Driver, f.Host.memoryTypes("/")
	if o.Stage == StageRead { // the kernel drives the device: there is no stage between read and up
		return nil
	}
	for end := time.Now().Add(o.Wait); ; {
		link, err := port.Link()
		if err != nil {
			return err
		}
		f.Link = &link
		if link.Up || time.Now().After(end) {
			break
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	if o.Stage == StageLoop {
		if err := f.loop(ctx, port, o); err != nil {
			return fmt.Errorf("self-test: %w", err)
		}
	}
	var s nic.Stats
	if err := port.ReadStats(&s); err != nil {
		return err
	}
	f.Stats = &s
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// etherProbe is the first EtherType for local experiments (IEEE 802 §9.2.3).
const etherProbe = 0x88B5

// loop sends one frame or message and waits for its return.
func (f *File) loop(ctx context.Context, port nic.Answerer, o Options) error {
	l := &Loop{To: "itself"}
	f.Loop = l
	var send func() error
	var recv func(buf []byte) (int, error)
	var ours func(frame []byte) bool
	switch d := port.(type) {
	case nic.Messenger:
		message := []byte("rebound probe")
		to, err := d.Resolve(d.Endpoints()[0].Address)
		if err != nil {
			return err
		}
		l.Bytes = len(message)
		send = func() error { return d.Send(d.Endpoints()[0].Service, to, message) }
		recv = func(buf []byte) (int, error) { n, _, err := d.Recv(buf); return n, err }
		ours = func(m []byte) bool { return bytes.Contains(m, message) }
	case nic.Device:
		mac, err := parseMAC(f.Info.MAC)
		if err != nil {
			return err
		}
		var frame []byte
		if frame, ours = ownFrame(mac, f.Began); o.Peer.IsValid() {
			l.To = "a peer, by ARP"
			frame, ours = request(mac, o.From, o.Peer)
		}
		l.Bytes = len(frame)
		send = func() error { return d.Send(frame) }
		recv = func(buf []byte) (int, error) { n, _, err := d.Recv(buf); return n, err }
	default:
		return fmt.Errorf("driver %s sends nothing", f.Info.Driver)
	}
	var before nic.Stats
	if err := port.ReadStats(&before); err != nil {
		return err
	}
	began := time.Now()
	if err := send(); err != nil {
		return err
	}
	l.Sent = true
	buf := make([]byte, 16384)
	for end := began.Add(o.Wait); time.Now().Before(end) && !l.Returned; {
		n, err := recv(buf)
		if err != nil {
			return err
		}
		if n > 0 && ours(buf[:n]) {
			l.Returned, l.After = true, time.Since(began)
		} else if n == 0 {
			if err := pause(ctx, 20*time.Microsecond); err != nil {
				return err
			}
		}
	}
	var after nic.Stats
	if err := port.ReadStats(&after); err != nil {
		return err
	}
	l.Counted = after.TxFrames > before.TxFrames
	if o.Peer.IsValid() && !l.Returned {
		return fmt.Errorf("the peer did not answer within %v: %w", o.Wait, nic.ErrTimeout)
	}
	return nil
}

func ownFrame(mac [6]byte, at time.Time) ([]byte, func([]byte) bool) {
	frame := append(append(append([]byte(nil), mac[:]...), mac[:]...), etherProbe>>8, etherProbe&0xFF)
	frame = binary.BigEndian.AppendUint64(frame, uint64(at.UnixNano()))
	frame = append(append(frame, "rebound probe"...), make([]byte, 25)...)
	return frame, func(got []byte) bool { return len(got) >= 60 && bytes.Equal(got[:60], frame) }
}

// request builds an ARP request for a peer's address (RFC 826), and returns a function that recognizes the reply.
func request(mac [6]byte, from, to netip.Addr) ([]byte, func([]byte) bool) {
	a, b := from.As4(), to.As4()
	frame := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, mac[:]...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1)
	frame = append(append(frame, mac[:]...), a[:]...)
	frame = append(append(frame, make([]byte, 6)...), b[:]...)
	frame = append(frame, make([]byte, 18)...)
	return frame, func(got []byte) bool {
		return len(got) >= 42 && binary.BigEndian.Uint16(got[12:]) == 0x0806 &&
			binary.BigEndian.Uint16(got[20:]) == 2 && [4]byte(got[28:32]) == b
	}
}

// space reads the whole configuration space of the function.
func space(fn pci.Config) (all ConfigHex) {
	var word [4]byte
	for off := 0; off < 4096; off += 4 {
		if fn.ReadConfig(off, word[:]) != nil {
			break
		}
		all = append(all, word[:]...)
	}
	return all
}

// compare opens a simulated function again, or reads the kernel's view of a real one, and returns differences in its
// configuration: commands, BARs and what capabilities control.
func (f *File) compare(device string, before ConfigHex) (changed []string) {
	config := f.Config
	if before != nil {
		config = before
	}
	if len(config) == 0 {
		return nil
	}
	after, err := reread(device)
	if err != nil {
		return []string{"whether it is: " + err.Error()}
	}
	return differences(config, after)
}

// differences compares two configuration headers. The error bits of the status register may set at any time. Linux
// enables a function's decoding of addresses when the function is opened, and leaves it enabled: it was disabled before
// if no driver had the function since boot. Bus mastering that the firmware left on is off afterwards.
func differences(before, after ConfigHex) (changed []string) {
	const command, decode, busMaster, errorBits = 0x04, 3, 4, 0xFFFF0000
	for off := 0; off+4 <= min(len(before), len(after), 64); off += 4 {
		was, is := binary.LittleEndian.Uint32(before[off:]), binary.LittleEndian.Uint32(after[off:])
		if off == command {
			was, is = was&^errorBits&^(busMaster&^is), is&^errorBits&^(decode&^was)
		}
		if was != is {
			changed = append(changed, fmt.Sprintf("configuration space %#02x: %08x, was %08x", off, is, was))
		}
	}
	return changed
}

func parseMAC(text string) (mac [6]byte, err error) {
	if n, _ := fmt.Sscanf(strings.ReplaceAll(text, ":", ""), "%2x%2x%2x%2x%2x%2x", &mac[0], &mac[1], &mac[2], &mac[3],
		&mac[4], &mac[5]); n != 6 {
		return mac, fmt.Errorf("%q is not an Ethernet address", text)
	}
	return mac, nil
}
