package netif

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Claims reserve addresses on an interface for the process. The end of the process releases them, even SIGKILL.
type Claims []*os.File

// Close releases the addresses.
func (c Claims) Close() {
	for _, f := range c {
		f.Close()
	}
}

// Claim reserves addresses that the process is about to answer for on the interface. It returns nic.ErrBusy if another
// responder of this user answers for one of them, whichever driver it uses: with packet sockets both would answer, and
// an XDP program would silence the other responder.
//
// A claim is a lock on a file in a folder that only this user can write: any process that can open the file, or create
// it first, could hold the lock and keep the responder from starting. Where there is no such folder, Claim reserves
// nothing and adds the reason to notes.
func (i *Interface) Claim(addresses []netip.Prefix, notes *[]string) (c Claims, err error) {
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	for _, p := range addresses {
		f, holder, err := lock(fmt.Sprintf("%d-%d-%v", i.namespace, i.Index, p.Addr()))
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return c, fmt.Errorf("address %v: %w: %s answers for it on %s: stop it, or use another address", p.Addr(),
				nic.ErrBusy, holder, i.Name)
		case err != nil:
			if notes != nil {
				*notes = append(*notes, fmt.Sprintf(
					"a second responder for the same addresses would not be noticed: %v", err))
			}
			return c, nil
		}
		c = append(c, f)
	}
	return c, nil
}

// lock locks the file of that name and writes the process's number to it. If another process has the lock, it returns
// EWOULDBLOCK and a description of that process. Close leaves the file: if it removed one that another process has just
// opened, a third process could lock a new one of that name.
func lock(name string) (_ *os.File, holder string, err error) {
	folder, err := claimFolder()
	if err != nil {
		return nil, "", err
	}
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, "", err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = fmt.Fprintln(f, os.Getpid())
		}
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		holder = process(f)
	}
	if err != nil {
		f.Close()
		return nil, holder, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, "", nil
}

// process describes the process whose number is in f.
func process(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	id := strings.TrimSpace(string(b))
	if err != nil || id == "" { // it has not written it yet
		return "another responder"
	}
	if comm, err := os.ReadFile("/proc/" + id + "/comm"); err == nil {
		return fmt.Sprintf("process %s (%s)", id, strings.TrimSpace(string(comm)))
	}
	return "process " + id
}

// claimFolder returns the folder of this user's claims: below the folder that the service manager made
// (RUNTIME_DIRECTORY of systemd.exec(5)), below /run/rebound for root, or below the login session's (XDG_RUNTIME_DIR).
func claimFolder() (string, error) {
	parents := strings.Split(os.Getenv("RUNTIME_DIRECTORY"), ":")
	if os.Geteuid() == 0 {
		parents = append(parents, "/run/rebound")
	}
	if session := os.Getenv("XDG_RUNTIME_DIR"); private(session) == nil { // sudo -E leaves another user's
		parents = append(parents, filepath.Join(session, "rebound"))
	}
	return folderFrom(parents)
}

// folderFrom returns the folder in the first of parents that has, or can have, one that only this user can write.
func folderFrom(parents []string) (string, error) {
	why := errors.New("no folder for locks (set RUNTIME_DIRECTORY to one that only this user can write)")
	for _, parent := range parents {
		if !filepath.IsAbs(parent) {
			continue
		}
		if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			why = err
			continue
		}
		folder := filepath.Join(parent, "answers")
		err := os.Mkdir(folder, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			why = err
			continue
		}
		if err := errors.Join(private(parent), private(folder)); err != nil {
			why = err
			continue
		}
		return folder, nil
	}
	return "", why
}

// private returns an error if a user other than this one and root can write in the folder.
func private(folder string) error {
	var st unix.Stat_t
	if err := unix.Stat(folder, &st); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder that only user %d can write (owner %d, mode %#o)", folder, os.Geteuid(),
			st.Uid, st.Mode&0o7777)
	}
	return nil
}
