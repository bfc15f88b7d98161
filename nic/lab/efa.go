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

// EFA is one more layer, with Linux's efa driver and what talks to it: BringEFA makes it.
const EFA = "efa"

// BringEFA builds Linux's efa driver for the kit's kernel, unless it is there already: half a minute, and 250 MB from the mirror,
// most of which is the kernel's source. It returns ErrCannot with the reason if the host lacks something.
func (k *Kit) BringEFA(ctx context.Context) error {
	lock, err := os.OpenFile(filepath.Join(k.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrCannot, err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lab: lock %s: %w", lock.Name(), err)
	}
	sum := sha256.Sum256(append(append([]byte{}, setupScript...), efaScript...)) // whose kernel it is for
	want, stamp := hex.EncodeToString(sum[:]), filepath.Join(k.Dir, "stamp-efa")
	if got, _ := os.ReadFile(stamp); string(got) == want {
		return nil
	}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "bash", "-s", "--", k.Dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(efaScript)), &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3, errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s", ErrCannot, strings.TrimSpace(out.String()+" "+errText(err)))
	case err != nil:
		return fmt.Errorf("lab: efa driver: %w: %s", err, out.String())
	}
	if err := writeTree(k.layer(EFA), filepath.Join(k.Dir, EFA+"-guest")); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}
