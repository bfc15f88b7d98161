package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// TestLabIPXE is rung F4: iPXE's own drivers on our models. iPXE gets its address by DHCP and a script by TFTP, runs
// it, and requests a file whose name it can compute only if every byte of the script arrived.
func TestLabIPXE(t *testing.T) {
	guests(t)
	for _, c := range running(catalogue.IPXE) {
		beside(t, c.name, c.ipxe)
	}
}

func (c *card) ipxe(t *testing.T) {
	s := newScene(t)
	near, far := sim.Pair()
	f := s.serve(c, near, c.model)
	f.foreign = true
	script, sum := sumScript(20000)
	want := fmt.Sprintf("sum-%d", sum)
	b := newBootServer(far, "boot.ipxe", map[string][]byte{"boot.ipxe": script, want: []byte("#!ipxe\nsleep 600\n")})
	defer b.close()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	start := time.Now()
	end := startIPXE(ctx, t, s.kit, s.dir, f.socket)
	defer end()
	var asked string
	for asked == "" && ctx.Err() == nil {
		select {
		case name := <-b.asked:
			t.Logf("%6.1fs asked for %s", time.Since(start).Seconds(), name)
			if strings.HasPrefix(name, "sum-") {
				asked = name
			}
		case <-ctx.Done():
		}
	}
	end()
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%d bytes of script in %d blocks, %d sent again; %d frames from the card", len(script), b.server.Blocks,
		b.server.Again, b.frames)
	for _, w := range b.wrong {
		t.Error("the peer got a broken frame: ", w)
	}
	if asked != want {
		t.Errorf("iPXE asked for %q at the end, want %q; its console:\n%s", asked, want,
			tail(filepath.Join(s.dir, "console.log")))
	}
	f.clean(t)
	proven(t, "F4", "iPXE", "DHCP, %d bytes by TFTP", len(script))
}

// ipxeBegin is the start of iPXE's script. By default iPXE waits 15 s for a link, and half a minute for DHCP, which may
// be too short on a busy machine.
const ipxeBegin = `#!ipxe
:again
dhcp || goto again
chain tftp://${next-server}/${filename} || goto again
`

// startIPXE boots iPXE on a function. Its console and QEMU's output go into dir. The returned end function may be
// called twice.
func startIPXE(ctx context.Context, t *testing.T, k *Kit, dir, socket string) (end func()) {
	t.Helper()
	j, _ := json.Marshal(device(socket))
	begin := filepath.Join(dir, "begin.ipxe")
	must.OK(t, os.WriteFile(begin, []byte(ipxeBegin), 0o644))
	cmd := exec.CommandContext(ctx, k.QEMU, append(hardware("q35", "", 1, dir), "-kernel", k.IPXE, "-initrd", begin,
		"-device", string(j))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := must.Get(os.Create(filepath.Join(dir, "qemu.log")))(t)
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer log.Close()
		runtime.LockOSThread() // the signal is sent when this thread exits
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		if cmd.Process != nil {
			cmd.Wait()
		}
	}()
	must.OK(t, <-started)
	return func() {
		cmd.Process.Kill()
		<-ended
	}
}

// sumScript is an iPXE script of n additions, and their sum: a lost or changed byte changes the sum, or ends the
// script.
func sumScript(n int) (script []byte, sum int) {
	r := rand.New(rand.NewPCG(1, 9))
	var b strings.Builder
	b.WriteString("#!ipxe\nset n:int32 0\n")
	for range n {
		v := 1 + r.IntN(99999)
		sum += v
		fmt.Fprintf(&b, "inc n %d\n", v)
	}
	b.WriteString("chain tftp://10.9.0.1/sum-${n}\n")
	return []byte(b.String()), sum
}
