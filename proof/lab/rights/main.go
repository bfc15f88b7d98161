// Rights runs a command with few rights, as a container's runtime does: "rights UID CAPABILITIES COMMAND...", with the
// capabilities by number, separated by commas. All others leave the bounding set, and no program that is started gets
// more. A user other than root gets the capabilities as ambient ones. It runs in the lab's guest.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	fmt.Fprintln(os.Stderr, "rights:", run(os.Args[1:]))
	os.Exit(1)
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: rights UID CAPABILITIES COMMAND...")
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var kept []int
	for _, n := range strings.Split(args[1], ",") {
		c, err := strconv.Atoi(n)
		if err != nil {
			return err
		}
		kept = append(kept, c)
	}
	command, err := exec.LookPath(args[2])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the thread that executes the command
	if err := limit(uid, kept); err != nil {
		return err
	}
	return unix.Exec(command, args[2:], os.Environ())
}

func limit(uid int, kept []int) error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(kept, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Setresgid(uid, uid, uid); err != nil {
		return err
	}
	if err := unix.Setresuid(uid, uid, uid); err != nil {
		return err
	}
	var sets [2]unix.CapUserData
	for _, c := range kept {
		bit := uint32(1) << (c % 32)
		s := &sets[c/32]
		s.Permitted, s.Effective, s.Inheritable = s.Permitted|bit, s.Effective|bit, s.Inheritable|bit
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return err
	}
	for _, c := range kept {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
