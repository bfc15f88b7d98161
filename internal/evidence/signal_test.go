package evidence_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// A signal in each stage of `responder probe` ends it: the device is as it was, and the file is written.
func TestSignals(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		stage  evidence.Stage
		signal syscall.Signal
		at     string // the command that the device has just been given; "" for the frame on the wire
	}{
		{evidence.StageRead, syscall.SIGINT, "GET_FEATURE ATTRIBUTES"},
		{evidence.StageRead, syscall.SIGHUP, "GET_FEATURE AENQ_CONFIG"},
		{evidence.StageUp, syscall.SIGINT, "CREATE_CQ"},
		{evidence.StageUp, syscall.SIGTERM, "CREATE_SQ"},
		{evidence.StageLoop, syscall.SIGINT, "CREATE_SQ"},
		{evidence.StageLoop, syscall.SIGINT, ""},
	} {
		t.Run(strings.Join([]string{string(c.stage), c.signal.String(), c.at}, " "), func(t *testing.T) {
			t.Parallel()
			for range 20 {
				if interrupted(t, c.stage, c.signal, c.at) {
					return
				}
			}
			t.Error("each probe was done before its signal came")
		})
	}
}

// interrupted sends a signal to a probe, and reports whether it arrived before the end of a stage that ends without
// one.
func interrupted(t *testing.T, stage evidence.Stage, signal syscall.Signal, at string) bool {
	m := enasim.New(enasim.Options{MAC: mac, AdminDelay: 10 * time.Millisecond})
	port, far, device := simtest.Serve(t, m)
	far.SetUp(stage == evidence.StageLoop) // stage up waits for a link that does not come up
	before := space(t, port)
	var reached, ended atomic.Bool
	m.FailAdmin(func(command string) uint8 {
		if command == at {
			reached.Store(true)
		}
		return 0
	})
	folder := t.TempDir()
	cmd := exec.Command(programs.Path(t, "responder"), "probe", "-stage", string(stage), "-wait", "1h", "-o", folder,
		device)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must.OK(t, cmd.Start())
	var err error
	go func() {
		err = cmd.Wait()
		ended.Store(true)
	}()
	await.Until(t, "the command, or the probe's frame", func() bool {
		return reached.Load() || at == "" &&
			far.Recv(0) != nil
	})
	cmd.Process.Signal(signal)
	await.Until(t, "the end of the probe", ended.Load)
	if stage == evidence.StageRead && cmd.ProcessState.ExitCode() == 0 {
		return false
	}
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v, want status 1:\n%s", err, out.String())
	}
	await.Until(t, "the server to see its client leave", func() bool { return port.Mappings() == 0 })
	if port.BusMaster() {
		t.Error("bus mastering is on")
	}
	if after := space(t, port); !bytes.Equal(before, after) {
		t.Errorf("configuration space is\n%x, was\n%x", after, before)
	}
	if r := m.Resets(); len(r) == 0 || r[len(r)-1] != 11 { // "shutdown": by the driver's own release
		t.Errorf("resets for reasons %v, want 11 at last", r)
	}
	for _, v := range port.Violations() {
		t.Error("violation: ", v)
	}
	files, _ := filepath.Glob(filepath.Join(folder, "*.tar.zst"))
	if len(files) != 1 {
		entries, _ := os.ReadDir(folder)
		t.Fatalf("files %v in the folder:\n%s", entries, out.String())
	}
	if f := must.Get(evidence.Read(files[0]))(t); !strings.Contains(f.Error, "context canceled") || len(f.Changed) > 0 {
		t.Errorf("file: error %q, changed %q", f.Error, f.Changed)
	}
	return true
}

func space(t *testing.T, port *sim.Port) (all []byte) {
	t.Helper()
	for off := 0; off < 256; off += 4 {
		var word [4]byte
		must.OK(t, port.ReadConfig(off, word[:]))
		all = append(all, word[:]...)
	}
	return all
}
