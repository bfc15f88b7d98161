package lab

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

//go:embed guest/init
var guestInit []byte

// saved returns the file of a guest without functions that has booted up to its init and waits for a reply. It boots
// and saves one if there is none in the kit's folder: booting takes eight seconds of CPU time, starting from the file
// half a second. The file's name depends on everything that the guest has from its boot; a run's additions are passed
// on a disk.
func (k *Kit) saved(ctx context.Context, m Machine) (state string, err error) {
	dir := m.Dir
	m = Machine{Dir: dir, Append: m.Append, IOMMU: m.IOMMU, Layers: m.Layers, Memory: m.Memory,
		OneCPU: m.OneCPU}
	h := sha256.New()
	h.Write(guestInit)
	boot := k.arguments(m)
	fmt.Fprintln(h, strings.ReplaceAll(strings.Join(boot, "\x00"), dir, "."), k.Version)
	for _, f := range append(k.initrds(m), k.Kernel) {
		info, err := os.Stat(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, f, info.Size(), info.ModTime().UnixNano())
	}
	what := fmt.Sprintf("%x",
		sha256.Sum256([]byte(fmt.Sprint(m.Append, m.IOMMU, m.Layers, m.Memory, m.OneCPU, k.Kernel))))[:8]
	state = filepath.Join(k.Dir, fmt.Sprintf("guest-%s-%x", what, h.Sum(nil)[:8]))
	if _, err := os.Stat(state); err == nil {
		return state, nil
	}
	lock, err := locked(filepath.Join(k.Dir, "guests.lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(state); err == nil { // another process saved it meanwhile
		return state, nil
	}
	old, _ := filepath.Glob(filepath.Join(k.Dir, "guest-"+what+"-*"))
	for _, f := range old {
		os.Remove(f)
	}
	if err := k.save(ctx, m, boot, state); err != nil {
		return "", err
	}
	return state, nil
}

func (k *Kit) save(ctx context.Context, m Machine, args []string, state string) error {
	initrd, err := k.initrdOf(m)
	if err != nil {
		return err
	}
	defer os.Remove(initrd)
	q, err := k.start(ctx, m, append(args, "-initrd", initrd))
	if err != nil {
		return err
	}
	defer q.end()
	sc := bufio.NewScanner(q.out)
	for sc.Scan() {
		if strings.TrimRight(sc.Text(), "\r") != "##ready" {
			continue
		}
		part := state + ".part"
		defer os.Remove(part)
		said, err := monitor(m.monitor(), saveTime, "migrate_set_capability mapped-ram on", "migrate file:"+part,
			"info migrate")
		// The monitor may reply while the devices' state is still being written ("Status: device").
		for end := time.Now().Add(saveTime); err == nil && !strings.Contains(said, "completed") &&
			!strings.Contains(said, "failed") && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
			said, err = monitor(m.monitor(), saveTime, "info migrate")
		}
		if err == nil && !strings.Contains(said, "completed") {
			err = fmt.Errorf("lab: save the booted guest: %s", said)
		}
		if err != nil {
			return err
		}
		return os.Rename(part, state)
	}
	return q.result(fmt.Errorf("%w: it ended before its init; it said last: nothing", errGuest), "nothing")
}

func (k *Kit) initrds(m Machine) []string {
	parts := []string{k.initrd}
	if k.modules != "" {
		parts = append(parts, k.modules)
	}
	for _, l := range m.Layers {
		parts = append(parts, k.layer(l))
	}
	return parts
}

// initrdOf is the kit's initramfs followed by the layers and the init.
func (k *Kit) initrdOf(m Machine) (string, error) {
	name := filepath.Join(m.Dir, "initrd")
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, part := range k.initrds(m) {
		b, err := os.ReadFile(part)
		if err != nil {
			return "", err
		}
		if _, err := f.Write(append(b, make([]byte, (4-len(b)%4)%4)...)); err != nil {
			return "", err
		}
	}
	a := newArchive(f)
	a.file("init", 0o755, guestInit)
	return name, a.close()
}

// disk is the image of a disk with the run's script and files, as an archive.
func (m *Machine) disk() (string, error) {
	name := filepath.Join(m.Dir, "disk")
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	a := newArchive(f)
	a.dir("lab")
	a.file("lab/run.sh", 0o755, []byte(m.Script))
	for path, body := range m.Files {
		a.file("lab/"+path, 0o755, body)
	}
	if err := a.close(); err != nil {
		return "", err
	}
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	return name, f.Truncate((at + 4095) &^ 4095) // whole sectors
}
