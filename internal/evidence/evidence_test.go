package evidence_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

var mac = [6]byte{0x02, 0xA1, 0xB2, 0xC3, 0xD4, 0xE5}

// eui is the end of all its forms as an EUI-64.
var eui = [7]byte{0xA1, 0xB2, 0xFF, 0xFE, 0xC3, 0xD4, 0xE5}

// serve serves a model on a vfio-user socket and returns its device name and the port.
func serve(t *testing.T, m sim.Model) (string, *sim.Port) {
	t.Helper()
	port, far, device := simtest.Serve(t, m)
	far.SetUp(true)
	return device, port
}

func run(t *testing.T, ctx context.Context, device string, stage evidence.Stage, mask bool) *evidence.File {
	t.Helper()
	c := cards.Config{Driver: "auto"}
	c.Device = device
	return must.Get(evidence.Run(ctx, evidence.Options{Card: c, Stage: stage, Wait: 50 * time.Millisecond,
		Mask: mask}))(t)
}

// Every stage on every supported card: the file is complete and does not contain the address, the device is restored,
// and the model reports no violation.
func TestProbe(t *testing.T) {
	for _, c := range catalogue.All {
		if c.Driver == "" {
			continue
		}
		for _, p := range c.Profiles[:1] {
			stages := []evidence.Stage{evidence.StageRead, evidence.StageUp, evidence.StageLoop}
			if testing.Short() {
				stages = stages[2:] // it also does what the others do
			}
			for _, stage := range stages {
				t.Run(fmt.Sprintf("%s %s %s", c.Name, p.Name, stage), func(t *testing.T) {
					device, port := serve(t, p.New(mac))
					f := run(t, context.Background(), device, stage, true)
					if f.Error != "" || len(f.Changed) > 0 || f.Driver != c.Driver || len(f.Config) < 64 {
						t.Fatalf("driver %s, %d bytes of configuration space, error %q, changed %q", f.Driver,
							len(f.Config), f.Error, f.Changed)
					}
					if v := port.Violations(); len(v) > 0 {
						t.Errorf("the model has something against it: %q", v)
					}
					if (f.Loop != nil) != (stage == evidence.StageLoop) || f.Loop != nil &&
						!(f.Loop.Sent && f.Loop.Counted) {
						t.Errorf("stage %s: self-test %+v", stage, f.Loop)
					}
					back := must.Get(evidence.Read(must.Get(f.Save(t.TempDir()))(t)))(t)
					check.Equal(t, len(back.Trace), len(f.Trace), "%d accesses")
					check.Equal(t, back.ID, f.ID, "ID %v")
					check.Equal(t, back.Log, f.Log, "log %q")
					check.Equal(t, string(back.Config), string(f.Config), "configuration space %x")
					for _, e := range back.Trace {
						if guid := eui[:]; bytes.Contains(e.In, guid) || bytes.Contains(e.Out, guid) {
							t.Errorf("the GUID is in the trace: %v", e)
						}
						if bytes.Contains(e.In, mac[:]) || bytes.Contains(e.Out, mac[:]) ||
							strings.Contains(e.String(), hex.EncodeToString(mac[:])) {
							t.Errorf("the address is in the trace: %v", e)
						}
					}
					text := hex.EncodeToString(back.Config)
					if strings.Contains(text, "a1b2") || strings.Contains(text, "b2a1") {
						t.Errorf("the address is in configuration space: %s", text)
					}
					if strings.Contains(back.Log, "02:a1:b2") {
						t.Errorf("the address is in the log: %s", back.Log)
					}
				})
			}
		}
	}
}

// A file from elsewhere that would fill the memory, or that has a part twice, is refused.
func TestHostileFile(t *testing.T) {
	summary := []byte(`{"version":1}`)
	many := bytes.Repeat([]byte("{}\n"), 1<<19+1)
	for name, parts := range map[string][]part{
		"entries": {{"probe.json", summary}, {"trace.jsonl", many}},
		"twice":   {{"probe.json", summary}, {"trace.jsonl", nil}, {"trace.jsonl", nil}},
		"length":  {{"probe.json", summary}, {"a", make([]byte, 130<<20)}, {"b", make([]byte, 130<<20)}},
		"nesting": {{"probe.json", bytes.Repeat([]byte("["), 1<<20)}},
		"nothing": {{"x\x1b[2J", summary}},
	} {
		if (name == "length" || name == "entries") && testing.Short() {
			continue
		}
		path := filepath.Join(t.TempDir(), "f")
		out := must.Get(os.Create(path))(t)
		z := must.Get(zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedFastest)))(t)
		w := tar.NewWriter(z)
		for _, p := range parts {
			must.OK(t, w.WriteHeader(&tar.Header{Name: p.name, Mode: 0o644, Size: int64(len(p.body))}))
			must.Get(w.Write(p.body))(t)
		}
		must.OK(t, errors.Join(w.Close(), z.Close(), out.Close()))
		if f, err := evidence.Read(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %d entries, %v", name, len(f.Trace), err)
		}
	}
}

type part struct {
	name string
	body []byte
}

// A probe that is interrupted before any step of Open ends there, and leaves the device as it was.
func TestInterruptedProbe(t *testing.T) {
	device, port := serve(t, catalogue.All[slices.IndexFunc(catalogue.All,
		func(c catalogue.Card) bool { return c.Name == "mlx5" })].Profiles[0].New(mac))
	whole := run(t, context.Background(), device, evidence.StageUp, false)
	steps := 0
	for _, e := range whole.Trace {
		if e.Kind == cmdtrace.Step {
			steps++
		}
	}
	if steps < 10 {
		t.Fatalf("%d steps", steps)
	}
	step := needs.Cases(1, 5)
	for n := 0; n < steps; n += step {
		f := run(t, &after{Context: context.Background(), n: n}, device, evidence.StageUp, false)
		if !strings.Contains(f.Error, context.Canceled.Error()) || len(f.Changed) > 0 {
			t.Errorf("interrupted after %d steps: error %q, changed %q", n, f.Error, f.Changed)
		}
	}
	if v := port.Violations(); len(v) > 0 {
		t.Errorf("the model has something against it: %q", v)
	}
}

// after is a context whose Err reports cancellation after n calls.
type after struct {
	context.Context
	n int
}

func (a *after) Err() error {
	if a.n--; a.n < 0 {
		return context.Canceled
	}
	return nil
}

// If a device refuses a command, the file has its raw bytes, and the device is restored.
func TestProbeOfADeviceThatFails(t *testing.T) {
	device, _ := serve(t, enasim.New(enasim.Options{MAC: mac, Unsupported: 1 << 14, NotReady: true}))
	f := run(t, context.Background(), device, evidence.StageUp, true)
	if !strings.Contains(f.Error, "DEV_STS") || len(f.Changed) > 0 {
		t.Errorf("error %q, changed %q", f.Error, f.Changed)
	}
	check.OK(t, check.Err(f.Save(t.TempDir())))
	check.Contains(t, f.Summary(), "stage up failed")
}
