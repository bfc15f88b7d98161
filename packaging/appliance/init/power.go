package main

import (
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// order is how this machine ends.
type order int

const (
	powerOff order = unix.LINUX_REBOOT_CMD_POWER_OFF
	restart  order = unix.LINUX_REBOOT_CMD_RESTART
)

// orders returns what the power button and Ctrl-Alt-Del ask for.
func orders() <-chan order {
	out := make(chan order, 1)
	put := func(o order) {
		select {
		case out <- o:
		default:
		}
	}
	files, _ := filepath.Glob("/dev/input/event*")
	for _, f := range files {
		go func() {
			f, err := os.Open(f)
			if err != nil {
				return
			}
			defer f.Close()
			const size, keyEvent, keyPower = 24, 1, 116 // input_event, EV_KEY, KEY_POWER (linux/input-event-codes.h)
			for b := make([]byte, size); ; {
				if _, err := io.ReadFull(f, b); err != nil {
					return
				}
				if binary.LittleEndian.Uint16(b[16:]) == keyEvent && binary.LittleEndian.Uint16(b[18:]) == keyPower &&
					binary.LittleEndian.Uint32(b[20:]) == 1 {
					put(powerOff)
				}
			}
		}()
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGINT, unix.SIGTERM) // the kernel sends SIGINT for Ctrl-Alt-Del
	go func() {
		for range asked {
			put(restart)
		}
	}()
	return out
}

// watchdog is the hardware watchdog. It restarts the machine when beat is not called for its timeout.
type watchdog struct {
	mu   sync.Mutex
	file *os.File
	next time.Time
	each time.Duration
}

// open arms the watchdog, unless it is armed, and returns what is shown about it, which is empty if it was armed
// before.
func (w *watchdog) open(timeout time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		return ""
	}
	if timeout == 0 {
		return "off"
	}
	f, err := os.OpenFile("/dev/watchdog0", os.O_WRONLY, 0)
	if err != nil {
		return "this machine has none"
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, int(timeout.Seconds())); err != nil {
		timeout = 20 * time.Second // the device has a fixed one, which is longer than that
	}
	w.file, w.each = f, timeout/4
	name, _ := os.ReadFile("/sys/class/watchdog/watchdog0/identity")
	return strings.TrimSpace(string(name)) + ", " + timeout.String()
}

func (w *watchdog) beat(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && now.After(w.next) {
		w.file.Write([]byte{0})
		w.next = now.Add(w.each)
	}
}

// disarm stops the watchdog by its magic character.
func (w *watchdog) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		w.file.Write([]byte("V"))
		w.file.Close()
		w.file = nil
	}
}
