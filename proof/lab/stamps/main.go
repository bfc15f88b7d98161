// Stamps exchanges PTP messages and prints the card's timestamps. It runs in the lab's guest: "stamps receive DEV COUNT
// ADDRESS" with the sender's address, then "stamps send DEV COUNT ADDRESS" with the receiver's. Each line is what the
// card's clock showed before, the timestamp, and the clock afterwards.
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// eventPort is PTP's port of event messages.
const eventPort = 319

// patience allows for a busy machine.
const patience = 60 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stamps:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: stamps receive|send DEV COUNT ADDRESS")
	}
	count, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	peer, err := netip.ParseAddr(args[3])
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	clock, err := enable(fd, args[1])
	if err != nil {
		return err
	}
	sends, port, to := args[0] == "send", eventPort, eventPort+1
	if sends {
		port, to = to, port
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return err
	}
	// A Sync message of version 2. What the receiver returns, to another port, is not stamped.
	message := make([]byte, 44)
	message[1], message[3] = 2, 44
	var m netif.Message
	for i := range count {
		before, err := now(clock)
		if err != nil {
			return err
		}
		// A card stamps no message before the stamp of the last was read, so the receiver asks for each.
		if sends && i > 0 {
			if err := wait(&m, fd, 0); err != nil {
				return err
			}
		}
		if sends || i > 0 {
			if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Port: to, Addr: peer.As4()}); err != nil {
				return err
			}
		}
		flags := 0
		if sends {
			flags = unix.MSG_ERRQUEUE
		}
		if err := wait(&m, fd, flags); err != nil {
			return err
		}
		t, _, _ := m.Stamp()
		if !t.Hardware {
			return fmt.Errorf("message %d has no timestamp of the card: %+v", i, t)
		}
		after, err := now(clock)
		if err != nil {
			return err
		}
		fmt.Println(before, t.Nanoseconds, after)
	}
	return nil
}

// wait receives a message, or a timestamp from the error queue.
func wait(m *netif.Message, fd, flags int) error {
	for buf, end := make([]byte, 256), time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		_, e := m.Receive(fd, buf, flags|unix.MSG_DONTWAIT, nil)
		switch {
		case e == 0:
			return nil
		case e != unix.EAGAIN && e != unix.EINTR || time.Now().After(end):
			return fmt.Errorf("no message: %w", e)
		}
	}
}

// enable turns the card's timestamps on, and returns its clock.
func enable(fd int, dev string) (clock int32, err error) {
	info, err := unix.IoctlGetEthtoolTsInfo(fd, dev)
	if err != nil {
		return 0, err
	}
	config := unix.HwTstampConfig{Tx_type: unix.HWTSTAMP_TX_ON, Rx_filter: unix.HWTSTAMP_FILTER_PTP_V2_EVENT}
	if err := unix.IoctlSetHwTstamp(fd, dev, &config); err != nil {
		return 0, fmt.Errorf("SIOCSHWTSTAMP: %w", err)
	}
	phc, err := unix.Open(fmt.Sprintf("/dev/ptp%d", info.Phc_index), unix.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_RAW_HARDWARE|
		unix.SOF_TIMESTAMPING_RX_HARDWARE|unix.SOF_TIMESTAMPING_TX_HARDWARE|unix.SOF_TIMESTAMPING_OPT_ID|
		unix.SOF_TIMESTAMPING_OPT_TSONLY)
	return unix.FdToClockID(phc), err
}

func now(clock int32) (int64, error) {
	var t unix.Timespec
	err := unix.ClockGettime(clock, &t)
	return t.Nano(), err
}
