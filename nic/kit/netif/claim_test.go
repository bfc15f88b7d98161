package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

var claimed = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("2001:db8::2/64")}

// An address has one claim on an interface of a network namespace, until it is closed. The error names the process.
func TestClaim(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", folder+":/elsewhere")
	var notes []string
	here := &Interface{Name: "eth1", Index: 7, namespace: 1}
	c := must.Get(here.Claim(claimed, &notes))(t)
	comm := strings.TrimSpace(string(must.Get(os.ReadFile("/proc/self/comm"))(t)))
	check.Fails(t, "again", check.Err(here.Claim(claimed[1:], &notes)), nic.ErrBusy,
		fmt.Sprintf("process %d (%s) answers for it on eth1", os.Getpid(), comm))
	check.Fails(t, "one of two", check.Err(here.Claim([]netip.Prefix{netip.MustParsePrefix("10.0.0.3/24"), claimed[1]}, &notes)),
		nic.ErrBusy)
	must.Get(here.Claim([]netip.Prefix{netip.MustParsePrefix("10.0.0.3/24")}, &notes))(t).Close()
	for _, other := range []*Interface{{Index: 7, namespace: 2}, {Index: 8, namespace: 1}} {
		must.Get(other.Claim(claimed, &notes))(t).Close()
	}
	c.Close()
	must.Get(here.Claim(claimed, &notes))(t).Close()
	check.Equal(t, len(notes), 0, "%d notes, want %d")
	for _, path := range []string{folder, filepath.Join(folder, "answers")} {
		check.OK(t, private(path))
	}
}

// The file of a claim names its holder, which a longer one before it does not change.
func TestHolder(t *testing.T) {
	comm := strings.TrimSpace(string(must.Get(os.ReadFile("/proc/self/comm"))(t)))
	t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
	folder := must.Get(claimFolder())(t)
	for text, want := range map[string]string{"": "another responder", " \n": "another responder",
		fmt.Sprintln(os.Getpid()): fmt.Sprintf("process %d (%s)", os.Getpid(), comm), "99999999": "process 99999999",
		strings.Repeat("7", 40): "process " + strings.Repeat("7", 32)} {
		name := filepath.Join(folder, "1")
		must.OK(t, os.WriteFile(name, []byte(text), 0o600))
		f := must.Get(os.Open(name))(t)
		check.Equal(t, process(f), want, "%s")
		f.Close()
		check.Equal(t, process(f), "another responder", "a file that cannot be read: %s")
		f, _, err := lock("1")
		must.OK(t, err)
		check.Equal(t, string(must.Get(os.ReadFile(name))(t)), fmt.Sprintln(os.Getpid()), "the file has %q")
		f.Close()
	}
	must.OK(t, os.Symlink("1", filepath.Join(folder, "1-7-10.0.0.2")))
	var notes []string
	c, err := (&Interface{Index: 7, namespace: 1}).Claim(claimed, &notes)
	check.Equal(t, fmt.Sprint(len(c), len(notes), err), "0 1 <nil>", "claims, notes and error of a link: %s")
	check.Contains(t, notes[0], "a second responder for the same addresses would not be noticed: ", "symbolic links")
	check.OK(t, check.Err((&Interface{Index: 7, namespace: 1}).Claim(claimed, nil)))
}

// The first folder is used that can be made and is this user's alone.
func TestClaimFolder(t *testing.T) {
	needs.Mounts(t)
	must.OK(t, unix.Mount("none", "/run", "tmpfs", 0, "mode=0755"))
	must.OK(t, os.WriteFile("/run/file", nil, 0o644))
	must.OK(t, errors.Join(os.Mkdir("/run/user", 0o700), os.Mkdir("/run/full", 0o755), os.Mkdir("/run/others", 0o755)))
	must.OK(t, errors.Join(os.WriteFile("/run/full/answers", nil, 0o600), os.Chmod("/run/others", 0o777)))
	for _, c := range []struct{ service, session, want string }{
		{"relative:/run/none/x:/run/file:/run/full:/run/others:/run/service", "", "/run/service/answers <nil>"},
		{"", "/run/user", "/run/rebound/answers <nil>"},
		{"", "/run/user", "/run/user/rebound/answers <nil>"}, // /run/rebound is for everyone
		{"", "/run/others", " /run/rebound is not a folder that only user 0 can write (owner 0, mode 0777)"},
		{"/run/none/x", "", " /run/rebound is not a folder that only user 0 can write (owner 0, mode 0777)"},
	} {
		t.Setenv("RUNTIME_DIRECTORY", c.service)
		t.Setenv("XDG_RUNTIME_DIR", c.session)
		folder, err := claimFolder()
		check.Equal(t, fmt.Sprint(folder, " ", err), c.want, c.service+", "+c.session+": %s")
		os.Chmod("/run/rebound", 0o777)
	}
	got, err := folderFrom([]string{"relative"})
	check.Equal(t, got, "", "%s")
	check.Fails(t, "no folder", err, nil, "set RUNTIME_DIRECTORY")

	must.OK(t, errors.Join(os.Chown("/run/user", 65534, 0), os.Chown("/run/full", 1, 0)))
	const same = ^uintptr(0)
	_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, 65534, same) // of this thread only
	must.Equal(t, e, 0, "%v")
	check.OK(t, errors.Join(private("/run"), private("/run/user")))
	check.Fails(t, "another user's folder", private("/run/full"), nil, "only user 65534 can write (owner 1, mode 0755)")
}

// Without a folder that only this user can write, nothing is claimed, and a note says so. Locks of others in such a
// folder have no effect.
func TestClaimFolderOfOthers(t *testing.T) {
	needs.Root(t, "folders of another user")
	const nobody = 65534
	t.Setenv("XDG_RUNTIME_DIR", "")
	for name, c := range map[string]struct {
		make func(parent, folder string)
		says string
	}{
		"parent of another user": {func(parent, _ string) { must.OK(t, os.Chown(parent, nobody, nobody)) }, "65534, mode 0755"},
		"folder of another user": {func(_, folder string) { must.OK(t, os.Chown(folder, nobody, nobody)) }, "65534, mode 0700"},
		"parent for everyone":    {func(parent, _ string) { must.OK(t, os.Chmod(parent, 0o777)) }, "0, mode 0777"},
		"folder for everyone":    {func(_, folder string) { must.OK(t, os.Chmod(folder, 0o777|os.ModeSticky)) }, "0, mode 01777"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			folder := filepath.Join(parent, "answers")
			must.OK(t, os.Mkdir(folder, 0o700))
			theirs := must.Get(os.Create(filepath.Join(folder, "1-7-10.0.0.2")))(t)
			defer theirs.Close()
			must.OK(t, unix.Flock(int(theirs.Fd()), unix.LOCK_EX))
			c.make(parent, folder)
			t.Setenv("RUNTIME_DIRECTORY", parent)
			var notes []string
			got, why := folderFrom(strings.Split(parent, ":"))
			check.Equal(t, got, "", "folder %q, want %q")
			check.Fails(t, "folder", why, nil, "is not a folder that only user 0 can write (owner "+c.says+")")
			claims := must.Get((&Interface{Name: "eth1", Index: 7, namespace: 1}).Claim(claimed, &notes))(t)
			claims.Close()
			if len(claims) != len(claimed) && len(notes) != 1 {
				t.Errorf("%d addresses are claimed, notes %q", len(claims), notes)
			}
		})
	}
}
