package responder

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// A second process of this program undoes a change to the host when the first one exits, even if that is killed, and
// although a confined process no longer has the right to.

// secondProgram is this program. Tests, which are another, replace it.
var secondProgram = "/proc/self/exe"

// startSecond starts the second process and waits until it is ready. release has it undo its change, and returns its
// error.
func startSecond(args ...string) (release func() error, err error) {
	second := exec.Command(secondProgram, args...)
	second.Stderr = os.Stderr
	second.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for the responder
	in, err := second.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := second.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := second.Start(); err != nil {
		return nil, fmt.Errorf("start a second process: %w", err)
	}
	release = func() error { return errors.Join(in.Close(), second.Wait()) }
	if n, _ := out.Read(make([]byte, 1)); n != 1 {
		return nil, release()
	}
	return release, nil
}

// waitForFirst says in the second process that it is ready, and returns when the first one releases it or is gone.
func waitForFirst(stdout io.Writer, stdin io.Reader) {
	fmt.Fprint(stdout, ".")
	io.Copy(io.Discard, stdin)
}

// performSecond runs the second process, if args are for one.
func performSecond(args []string, stdout io.Writer, stdin io.Reader) (is bool, err error) {
	var run func([]string, io.Writer, io.Reader) error
	switch {
	case args[0] == keepCommand && len(args) > 1:
		run = keepAddresses
	case args[0] == stampCommand && len(args) == 5:
		run = keepStamping
	default:
		return false, nil
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	return true, run(args[1:], stdout, stdin)
}

// stampCommand restores a card's timestamps: rebound-responder COMMAND INTERFACE FLAGS TX RX, as in struct
// hwtstamp_config.
const stampCommand = "__keep_stamping"

// setStamping configures the timestamps of an interface's card. Tests replace it.
var setStamping = func(iface string, c *unix.HwTstampConfig) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.IoctlSetHwTstamp(fd, iface, c)
}

// lendStamping has a second process restore the timestamps of the card if d changed them. A pinned program keeps them:
// it answers on, and a change may reset the card.
func lendStamping(d *xdp.Device, iface string, pinned bool) (release func() error, err error) {
	old := d.TakeStamping()
	if old == nil || pinned {
		return func() error { return nil }, nil
	}
	text := func(n int32) string { return strconv.Itoa(int(n)) }
	if release, err = startSecond(stampCommand, iface, text(old.Flags), text(old.Tx_type),
		text(old.Rx_filter)); err != nil {
		return nil, errors.Join(err, setStamping(iface, old))
	}
	return release, nil
}

// keepStamping is the second process.
func keepStamping(args []string, stdout io.Writer, stdin io.Reader) error {
	var c unix.HwTstampConfig
	for i, to := range []*int32{&c.Flags, &c.Tx_type, &c.Rx_filter} {
		n, err := strconv.ParseInt(args[1+i], 10, 32)
		if err != nil {
			return err
		}
		*to = int32(n)
	}
	waitForFirst(stdout, stdin)
	if err := setStamping(args[0], &c); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("restore the timestamps of %s: %w", args[0], err)
	}
	return nil
}
