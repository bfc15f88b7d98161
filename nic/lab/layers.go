package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed efa.sh
var efaScript []byte

//go:embed scapy.sh
var scapyScript []byte

// More layers, which few runs need and a function brings.
const (
	EFA   = "efa"   // Linux's efa driver and what talks to it
	Scapy = "scapy" // over Pyverbs: what rdma-core's tests write the commands of a ConnectX with
)

// BringEFA builds Linux's efa driver for the kit's kernel, unless it is there already: half a minute, and 250 MB from the mirror,
// most of which is the kernel's source. It returns ErrCannot with the reason if the host lacks something.
func (k *Kit) BringEFA(ctx context.Context) error { return k.more(ctx, EFA, efaScript) }

// BringScapy fetches Scapy, of 1 MB, unless it is there already. It returns ErrCannot with the reason if the host lacks something.
func (k *Kit) BringScapy(ctx context.Context) error { return k.more(ctx, Scapy, scapyScript) }

// more makes a layer by a script.
func (k *Kit) more(ctx context.Context, layer string, script []byte) error {
	lock, err := os.OpenFile(filepath.Join(k.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrCannot, err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lab: lock %s: %w", lock.Name(), err)
	}
	sum := sha256.Sum256(append(append([]byte{}, setupScript...), script...)) // whose kernel and libraries it is for
	want, stamp := hex.EncodeToString(sum[:]), filepath.Join(k.Dir, "stamp-"+layer)
	if got, _ := os.ReadFile(stamp); string(got) == want {
		return nil
	}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "bash", "-s", "--", k.Dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(script)), &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3, errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s", ErrCannot, strings.TrimSpace(out.String()+" "+errText(err)))
	case err != nil:
		return fmt.Errorf("lab: layer %s: %w: %s", layer, err, out.String())
	}
	if err := writeTree(k.layer(layer), filepath.Join(k.Dir, layer+"-guest")); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}
