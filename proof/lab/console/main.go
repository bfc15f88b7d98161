// Console runs a program in a new terminal: "console PROGRAM ARGUMENTS...". Its standard input goes to the program as
// if typed, and the program's output is printed line by line, in order. DPDK's testpmd needs this: it writes its prompt
// and its output to different streams, and delays its output without a terminal.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

func main() {
	err := run(os.Args[1:])
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: console PROGRAM ARGUMENTS...")
	}
	ours, theirs, err := terminal()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal is sent when this thread exits
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	go io.Copy(ours, os.Stdin)
	io.Copy(os.Stdout, ours) // until the program closes its end, which reads as an error
	return cmd.Wait()
}

// terminal opens both ends of a new terminal in raw mode.
func terminal() (ours, theirs *os.File, err error) {
	if ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(ours.Fd())
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
		var n int
		if n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); err == nil {
			theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
		}
	}
	if err == nil {
		_, err = term.MakeRaw(int(theirs.Fd()))
	}
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("a new terminal: %w", err)
	}
	return ours, theirs, nil
}
