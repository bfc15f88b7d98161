package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Watch follows an interface through the kernel's link messages, so that a polling loop learns with one load that the
// interface went down or vanished. A lost carrier is no fault: it comes back.
type Watch struct {
	fault atomic.Pointer[error] // stays until the interface is opened again
	i     *Interface
	file  *os.File
	done  chan struct{}
}

// Watch starts to follow i in the calling thread's network namespace. Close ends it.
func (i *Interface) Watch() (*Watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink: follow links: %w", err)
	}
	w := &Watch{i: i, file: os.NewFile(uintptr(fd), "netlink"), done: make(chan struct{})}
	w.ask() // for changes between Lookup and here
	go w.follow()
	return w, nil
}

// Close ends the watch and waits until it has ended.
func (w *Watch) Close() {
	w.file.Close()
	<-w.done
}

// OK reports whether the interface has been up since it was opened.
func (w *Watch) OK() bool { return w.fault.Load() == nil }

// Err returns what happened to the interface: nic.ErrDown, nic.ErrGone or nil. Like OK, it may be called by a pinned
// loop.
func (w *Watch) Err() error {
	if err := w.fault.Load(); err != nil {
		return *err
	}
	return nil
}

func (w *Watch) follow() {
	defer close(w.done)
	b := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(b)
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			w.ask()
		case err != nil:
			return
		default:
			w.parse(b[:n])
		}
	}
}

// parse reads a datagram of rtnetlink(7) messages.
func (w *Watch) parse(b []byte) {
	const header, info = unix.SizeofNlMsghdr, unix.SizeofIfInfomsg
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return
		}
		if kind := binary.NativeEndian.Uint16(b[4:]); size >= header+info {
			index := int(int32(binary.NativeEndian.Uint32(b[header+4:])))
			flags := binary.NativeEndian.Uint32(b[header+8:])
			removed := kind == unix.RTM_DELLINK && b[header] == unix.AF_UNSPEC
			if index == w.i.Index && (removed || kind == unix.RTM_NEWLINK && flags&unix.IFF_UP == 0) {
				w.ask() // an interface goes down before it is removed: ask which of the two happened
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
}

// ask reads the interface's state.
func (w *Watch) ask() {
	l, err := w.i.nl.LinkByIndex(w.i.Index)
	switch {
	case err != nil:
		err = fmt.Errorf("interface %s: %w: it was removed, or moved to another network namespace", w.i.Name, nic.ErrGone)
	case l.Attrs().RawFlags&unix.IFF_UP == 0:
		err = fmt.Errorf("interface %s: %w: it was set down while in use", w.i.Name, nic.ErrDown)
	default:
		return
	}
	w.fault.Store(&err)
}
