package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"os"
	"path/filepath"
)

//go:embed efa.sh
var efaScript []byte

//go:embed scapy.sh
var scapyScript []byte

//go:embed tc.sh
var tcScript []byte

//go:embed kernel.sh
var kernelSetup []byte

// Optional layers, which few runs need and which are built on demand.
const (
	efa   = "efa"   // Linux's efa driver and the programs that use it
	tc    = "tc"    // iproute2's tc
	scapy = "scapy" // in addition to Pyverbs: rdma-core's tests use it to encode ConnectX commands
)

// bringEFA builds Linux's efa driver for the kit's kernel, unless it exists already: half a minute, and 250 MB from the
// mirror, most of which is the kernel's source. It returns errCannot with the reason if the host lacks something.
func (k *Kit) bringEFA(ctx context.Context) error { return k.more(ctx, efa, efaScript) }

// bringScapy downloads Scapy (1 MB), unless it exists already. It returns errCannot with the reason if the host lacks
// something.
func (k *Kit) bringScapy(ctx context.Context) error { return k.more(ctx, scapy, scapyScript) }

// bringTC downloads iproute2's tc (12 MB with its libraries), unless it exists already. It returns errCannot with the
// reason if the host lacks something.
func (k *Kit) bringTC(ctx context.Context) error { return k.more(ctx, tc, tcScript) }

// withKernel returns the kit with the kernel of another Debian release: 60 to 110 MB from the mirror, unless it exists
// already. It returns errCannot with the reason if the host lacks something, or if the mirror lacks the release.
func (k *Kit) withKernel(ctx context.Context, suite string) (*Kit, error) {
	layer := "kernel-" + suite
	if err := k.more(ctx, layer, kernelSetup, suite); err != nil {
		return nil, err
	}
	other := *k
	other.Kernel, other.modules = filepath.Join(k.Dir, "vmlinuz-"+suite), k.layer(layer)
	return &other, nil
}

// more builds a layer with a script.
func (k *Kit) more(ctx context.Context, layer string, script []byte, args ...string) error {
	lock, err := locked(filepath.Join(k.Dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	// identifies the kernel and libraries that the layer is for
	sum := sha256.Sum256(append(append([]byte{}, setupScript...), script...))
	want, stamp := hex.EncodeToString(sum[:]), filepath.Join(k.Dir, "stamp-"+layer)
	if got, _ := os.ReadFile(stamp); string(got) == want {
		return nil
	}
	if err := k.runScript(ctx, "layer "+layer, script, args...); err != nil {
		return err
	}
	if err := writeTree(k.layer(layer), filepath.Join(k.Dir, layer+"-guest")); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}
