package responder

import (
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/simtest"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// BenchmarkRestart stops and starts the responder while a bench sends 10,000 probes a second, and reports the median
// and the maximum of the lost probes, and of the longest round trips: a request that waits for the next responder is
// answered late.
func BenchmarkRestart(b *testing.B) {
	for _, c := range []struct {
		name string
		sets []string
	}{
		{"afpacket, stop and start", []string{"nic.driver=afpacket"}},
		{"afxdp, stop and start", []string{"nic.driver=afxdp"}},
		{"xdp, pinned", []string{"nic.driver=xdp", "nic.pin=restart"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWire(b)
			sets := append(c.sets, "guard.rate=0", "cpu.cores=0")
			p := w.start(b, nil, sets...)
			b.Cleanup(func() { exec.Command(program(b), "unpin", "restart").Run() })
			var x restarts
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "report")
				bench := exec.Command(programs.Path(b, "bench"), "run", "-target", ours4, "-proto", "udp", "-port", "7",
					"-driver", "afpacket", "-rate", "10000",
					"-duration", "3s", "-runs", "1", "-warmup", "0s", "-timeout", "2s", "-self-test", "0s", "-core",
					"1", "-ring-size", "16384", "-out", dir)
				said := &programs.Output{}
				bench.Stdout, bench.Stderr = said, said
				must.OK(b, w.there.try(b)(bench.Start))
				before := w.replies(b)
				await.Until(b, "5,000 replies", func() bool { return w.replies(b) >= before+5000 }, said.String)
				p.Process.Signal(unix.SIGTERM)
				p.Wait()
				p = w.start(b, nil, sets...)
				if err := bench.Wait(); err != nil {
					b.Fatal(err, said)
				}
				r := must.Get(report.Read(dir))(b)
				x.lost = append(x.lost, r.Counts.Sent-r.Counts.Received-r.Counts.Late)
				x.longest = append(x.longest, time.Duration(r.Main().Total.Max))
			}
			x.report(b)
		})
	}
}

// BenchmarkRestartDevice stops and starts the responder on a model while requests arrive at a rate. It reports the
// median and the maximum of the requests that were lost from the stop to the first reply afterwards, and of the longest
// waits for a reply, and the medians of how long the stop and the start take.
func BenchmarkRestartDevice(b *testing.B) {
	for name, ring := range map[string]string{"ixgbe": "4096", "virtio": "256", "ena": "1024", "mlx4": "4096",
		"mlx5": "4096"} { // the largest
		b.Run(name, func(b *testing.B) { benchmarkRestartDevice(b, name, ring) })
	}
}

// wired is a model with responders on it, and the other end of its wire.
type wired struct {
	testing.TB
	port *sim.Port
	far  *sim.Cable
	sets []string
}

func newWired(t testing.TB, m sim.Model) *wired {
	t.Helper()
	p, far, device := served(t, m)
	return &wired{TB: t, port: p, far: far, sets: []string{"nic.device=" + device, "respond.addresses=10.0.0.2/24",
		"respond.udp_ports=[7]", "guard.rate=0"}}
}

// served runs a model on a wire that is up, and fails the test for what its drivers do wrong.
func served(t testing.TB, m sim.Model) (p *sim.Port, far *sim.Cable, device string) {
	t.Helper()
	t.Cleanup(func() { complaints(t, p) })
	p, far, device = simtest.Serve(t, m)
	far.SetUp(true)
	return p, far, device
}

func (w *wired) responder(sets ...string) *exec.Cmd {
	return exec.Command(program(w), set(append(w.sets, sets...)...)...)
}

func (w *wired) start(sets ...string) *child {
	w.Helper()
	return &child{programs.Start(w, w.responder(sets...), nil)}
}

// request is a datagram to the responder's echo port.
func (w *wired) request(n uint64) []byte {
	f := make([]byte, 60)
	copy(f, plantMAC[:])
	copy(f[6:], benchMAC[:])
	copy(f[12:], "\x08\x00\x45\x00\x00\x24\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x03\x0a\x00\x00\x02\x30\x39\x00\x07\x00\x10\x00\x00")
	binary.BigEndian.PutUint16(f[24:], ^cksum.Sum(f[14:34], 0))
	binary.BigEndian.PutUint64(f[42:], n)
	return f
}

// devices are models of the drivers on the device that carry frames.
var devices = map[string]func() sim.Model{
	"ixgbe":  func() sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: plantMAC}) },
	"virtio": func() sim.Model { return virtiosim.New(virtiosim.Options{MAC: plantMAC}) },
	"ena":    func() sim.Model { return enasim.New(enasim.Options{MAC: plantMAC}) },
	"mlx5":   func() sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: plantMAC, Profile: mlx5sim.ConnectX4}) },
	"mlx4":   func() sim.Model { return mlx4sim.New(mlx4sim.Options{MAC: plantMAC}) },
}

func benchmarkRestartDevice(b *testing.B, name, ring string) {
	w := newWired(b, devices[name]())
	w.sets = append(w.sets, "cpu.cores=0", "nic.ring_size="+ring)
	p := w.start()
	var x restarts
	for b.Loop() {
		var sent, received atomic.Int64
		var longest time.Duration
		end, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			longest = w.load(&x, &sent, &received, end)
		}()
		await.Until(b, "replies", func() bool { return received.Load() >= rate/2 })
		// on the way, or lost because other work kept the model or a loop from running
		before := sent.Load() - received.Load()
		asked := time.Now()
		p.Process.Signal(unix.SIGTERM)
		p.Wait()
		ended := time.Now()
		p = w.start()
		x.stop, x.start = append(x.stop, ended.Sub(asked)), append(x.start, time.Since(ended))
		now := received.Load()
		await.Until(b, "a reply", func() bool { return received.Load() > now })
		x.lost = append(x.lost, sent.Load()-received.Load()-before)
		await.Until(b, "more replies", func() bool { return received.Load() >= now+rate/2 })
		close(end)
		<-done
		x.longest = append(x.longest, longest)
	}
	x.report(b)
	b.ReportMetric(milliseconds(x.stop), "ms/stop")
	b.ReportMetric(milliseconds(x.start), "ms/start")
	p.Process.Kill()
	p.Wait()
}

// rate is in requests a second.
const rate = 10000

// burst is the most that is sent at once, twice what is due in a millisecond. Requests that would be late are omitted:
// in one burst they would overflow a short ring.
const burst = 2 * rate / 1000

// load sends requests at the rate until end, and then waits until no more replies come. It returns the longest wait for
// a reply.
func (w *wired) load(x *restarts, sent, received *atomic.Int64, end chan struct{}) (longest time.Duration) {
	var at []time.Time
	receive := func() (any bool) {
		for f := w.far.Recv(0); f != nil; f = w.far.Recv(0) {
			if n := binary.BigEndian.Uint64(f[42:]); len(f) >= 50 && n < uint64(len(at)) && !at[n].IsZero() {
				longest = max(longest, time.Since(at[n]))
				at[n] = time.Time{}
				received.Add(1)
				any = true
			}
		}
		return any
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for idle := 0; idle < 500; { // milliseconds
		select {
		case <-end:
			if <-tick.C; receive() {
				idle = 0
			} else {
				idle++
			}
		case <-tick.C:
			due := int(time.Since(began) * rate / time.Second)
			if !w.far.OnWire() {
				for stop := min(due, len(at)+burst); len(at) < stop; {
					at = append(at, time.Now())
					w.far.Send(0, w.request(uint64(len(at)-1)))
					sent.Add(1)
				}
			}
			if late := due - len(at); late > 0 { // this process or the model was descheduled
				began = began.Add(time.Duration(late) * time.Second / rate)
				x.omitted += late
			}
			receive()
		}
	}
	return longest
}

// restarts are the results of runs with one restart each.
type restarts struct {
	lost    []int64
	longest []time.Duration
	stop    []time.Duration // from SIGTERM to the end of the process
	start   []time.Duration // from starting the next one to its ready line
	omitted int             // requests that were not sent, of all runs
}

// milliseconds is the median, because another process may delay a single run by seconds.
func milliseconds(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}

func (x *restarts) report(b *testing.B) {
	slices.Sort(x.lost)
	b.ReportMetric(float64(x.lost[len(x.lost)/2]), "lost")
	b.ReportMetric(float64(x.lost[len(x.lost)-1]), "lost/maximum")
	b.ReportMetric(milliseconds(x.longest), "ms/longest")
	b.ReportMetric(float64(x.longest[len(x.longest)-1].Microseconds())/1000, "ms/maximum")
	b.ReportMetric(float64(x.omitted), "omitted")
	b.ReportMetric(0, "ns/op")
}

// replies is how many frames the kernel's end of the wire has received.
func (w *wire) replies(t testing.TB) (n uint64) {
	t.Helper()
	w.there.do(t, func() {
		l := must.Get(netlink.LinkByName(peer))(t)
		n = l.Attrs().Statistics.RxPackets
	})
	return n
}
