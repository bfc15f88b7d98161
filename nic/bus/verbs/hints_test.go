package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// failing is a kernel that fails each call.
type failing struct {
	Kernel
	err error
}

func (f failing) Call(uint16, uint16, []Attr) error { return f.err }

// What the kernel refuses names the setting of the host that is the cause.
func TestHints(t *testing.T) {
	for _, c := range []struct {
		name string
		err  unix.Errno
		call func(*Context) error
		says string
	}{
		{"completion queue", unix.EPROTONOSUPPORT, func(c *Context) error { return second(c.CreateCQ(64, nil, nil)) }, "Linux 5.9"},
		{"context", unix.EPROTONOSUPPORT, func(c *Context) error { return c.Begin(nil, nil) }, "Linux 5.9"},
		{"completion queue", unix.ENOMEM, func(c *Context) error { return second(c.CreateCQ(64, nil, nil)) }, "locked memory is "},
		{"umem", unix.ENOMEM, func(c *Context) error { return check.Err(DevX{c}.RegisterUmem(0, 4096)) }, "locked memory is "},
	} {
		check.Fails(t, c.name, c.call(&Context{Kernel: failing{err: c.err}}), c.err, c.says)
	}
	check.Fails(t, "limited", lockedMemory(unix.ENOMEM, 8<<20, false), unix.ENOMEM, "limited to 8192 KiB",
		"LimitMEMLOCK")
	for _, c := range []struct {
		limit uint64
		lock  bool
	}{{unix.RLIM_INFINITY, false}, {8 << 20, true}} {
		check.Fails(t, "not limited", lockedMemory(unix.ENOMEM, c.limit, c.lock), unix.ENOMEM, "cgroup")
	}
	check.Equal(t, noMemory(unix.EIO), error(unix.EIO), "another error: %v")

	sys := t.TempDir()
	check.Equal(t, selinux(sys), "", "without SELinux: %q")
	must.OK(t, os.MkdirAll(filepath.Join(sys, "fs/selinux"), 0o755))
	for text, says := range map[string]bool{"0": false, "1": true} {
		must.OK(t, os.WriteFile(filepath.Join(sys, "fs/selinux/enforce"), []byte(text), 0o644))
		check.Equal(t, selinux(sys) != "", says, text+": %v")
	}
}

func second(_, _ uint32, err error) error { return err }

func TestMayLock(t *testing.T) {
	status := string(must.Get(os.ReadFile("/proc/thread-self/status"))(t))
	_, after, _ := strings.Cut(status, "CapEff:")
	effective := must.Get(strconv.ParseUint(strings.Fields(after)[0], 16, 64))(t)
	check.Equal(t, mayLock(), effective>>unix.CAP_IPC_LOCK&1 == 1, "%t")
}
