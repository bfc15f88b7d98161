package rig

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/sim"
)

// FunctionBeside returns fn as a simulated kernel shows it to a driver beside its own: found's RDMA device, which open opens, with the
// kernel's files of it. The driver is asked for interface eth1.
func FunctionBeside(t testing.TB, fn pci.Function, found verbs.Found, firmware string, open func(verbs.Found) (verbs.Kernel, error)) *verbs.Function {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sys := t.TempDir()
	found.Function.Address, found.Function.ID, found.Function.NUMANode = "0000:03:00.0", fn.ID(), -1
	dir, rdma := filepath.Join(sys, "bus/pci/devices", found.Function.Address), filepath.Join(sys, "class/infiniband", found.Name)
	must(os.MkdirAll(dir, 0o755))
	config := make([]byte, 4096)
	for off := 0; off < len(config); off += 4 {
		must(fn.ReadConfig(off, config[off:off+4]))
	}
	must(os.WriteFile(filepath.Join(dir, "config"), config, 0o644))
	must(os.MkdirAll(rdma, 0o755))
	must(os.WriteFile(filepath.Join(rdma, "fw_ver"), []byte(firmware+"\n"), 0o644))
	f, err := verbs.New("eth1", found, sys, open)
	must(err)
	return f
}

// Process is what kills a simulated process that uses a card beside the kernel's driver, and what it does until then.
type Process struct {
	Open  func() error // opens the card
	Calls *int         // that Open made to the kernel
	DieAt *int         // the call in which the process is killed, 0 for never
	// Begin returns a step of the process and the card: frames for both drivers, and some of the work that they cause.
	Begin func() (step func(*rand.Rand))
	Kill  func()
	// Dead checks what is left, before what remains of the driver in this process is closed: opened reports whether there is any.
	Dead func(kill int, opened bool)
}

// Killed kills a process 100 times: at a random call while it opens the card, or after random steps.
func Killed(t *testing.T, p Process) {
	rng := rand.New(rand.NewPCG(27, 1))
	opening := 0
	for i := range 100 {
		*p.Calls, *p.DieAt = 0, 0
		if i%2 == 1 {
			*p.DieAt = 1 + rng.IntN(opening)
		}
		err := p.Open()
		switch {
		case *p.DieAt != 0 && err == nil:
			t.Fatalf("killed in call %d of %d, and the card is open", *p.DieAt, opening)
		case *p.DieAt == 0 && err != nil:
			t.Fatal(err)
		case err == nil:
			opening = *p.Calls
			step := p.Begin()
			for range rng.IntN(200) {
				step(rng)
			}
			p.Kill()
		}
		p.Dead(i, err == nil)
	}
}

// Drain takes what is left on the wire and in the queue of the kernel's driver.
func Drain(t testing.TB, port *sim.Port, wire *sim.Cable, kernel nic.Device) {
	t.Helper()
	buf := make([]byte, 2048)
	for some := true; some; {
		some = false
		port.Settle(100000)
		for wire.Recv(0) != nil {
			some = true
		}
		for {
			n, _, err := kernel.Recv(buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			some = true
		}
	}
}
