package netif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Watch follows an interface through the kernel's link messages, so that a polling loop learns with one load that the
// interface went down for too long or vanished. A lost carrier is no fault: it comes back.
type Watch struct {
	fault atomic.Pointer[error] // stays until the interface is opened again
	i     *Interface
	file  *os.File
	done  chan struct{}
	o     Following
	mac   chan [6]byte

	mu       sync.Mutex
	closed   bool
	last     [6]byte           // the interface's MAC when it was read last
	impaired map[string]string // reasons that apply, each with its explanation
	downAt   time.Time
	expired  *time.Timer
}

// Following is what a responder wants from a Watch.
type Following struct {
	DownLimit time.Duration // nic.Options.DownLimit
	MTU       int           // longer packets than this are lost; 0 means that they are not
	// the interface's MAC is the responder's: MACChanged delivers it, and Followed ends the wait
	OwnMAC    bool
	Addresses []netip.Prefix // that the kernel must not own, because both would answer
	Log       *slog.Logger
}

// Watch starts to follow i in the calling thread's network namespace. Close ends it.
func (i *Interface) Watch(o Following) (*Watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK)
	if len(o.Addresses) > 0 {
		groups |= unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink: follow links: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watch{i: i, file: os.NewFile(uintptr(fd), "netlink"), done: make(chan struct{}), o: o,
		mac: make(chan [6]byte, 1), last: i.MAC,
		impaired: map[string]string{}}
	w.readState() // for changes between Lookup and here
	go w.follow()
	return w, nil
}

// Close ends the watch and waits until it has ended.
func (w *Watch) Close() {
	w.file.Close()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.expired != nil {
		w.expired.Stop()
	}
}

// OK reports whether the interface has existed since it was opened, and was never down for longer than permitted.
func (w *Watch) OK() bool { return w.fault.Load() == nil }

// Err returns what happened to the interface: nic.ErrDown, nic.ErrGone or nil. Like OK, it may be called by a pinned
// loop.
func (w *Watch) Err() error {
	if err := w.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// MACChanged delivers the interface's MAC when it has changed.
func (w *Watch) MACChanged() <-chan [6]byte { return w.mac }

// Followed says that the responder answers for this MAC now.
func (w *Watch) Followed(mac [6]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if mac == w.last { // otherwise the next one is on its way
		w.impair("mac", "", "")
	}
}

// Impaired returns the reasons of nic.Impairments that apply.
func (w *Watch) Impaired() (reasons []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.impaired {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	return reasons
}

// Impair sets or, without a text, ends a state in which requests are lost, and logs the change. fix says what to do.
func (w *Watch) Impair(reason, what, fix string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.impair(reason, what, fix)
}

func (w *Watch) impair(reason, what, fix string) {
	switch old, was := w.impaired[reason]; {
	case what == "" && was:
		delete(w.impaired, reason)
		w.o.Log.Log(context.Background(), nic.Notice, "requests are answered again", "interface", w.i.Name, "reason",
			reason)
	case what != "" && what != old:
		w.impaired[reason] = what
		w.o.Log.Warn(what, "interface", w.i.Name, "reason", reason, "fix", fix)
	}
}

// follow reads the kernel's messages about links until the socket is closed, and reads the state again after each
// that concerns the interface or if messages were lost.
func (w *Watch) follow() {
	defer close(w.done)
	b := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(b)
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			w.readState()
		case err != nil:
			return
		case w.concerned(b[:n]):
			w.readState()
		}
	}
}

// concerned reports whether a datagram of rtnetlink(7) messages may be about a change of the interface.
func (w *Watch) concerned(b []byte) bool {
	const header, info = unix.SizeofNlMsghdr, unix.SizeofIfInfomsg
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return false
		}
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			return true
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if size >= header+info && int(int32(binary.NativeEndian.Uint32(b[header+4:]))) == w.i.Index &&
				(kind == unix.RTM_NEWLINK || b[header] == unix.AF_UNSPEC) {
				return true
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return false
}

// readState reads the interface's state.
func (w *Watch) readState() {
	l, err := w.i.nl.LinkByIndex(w.i.Index)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.fail(fmt.Errorf("interface %s: %w: it was removed, or moved to another network namespace", w.i.Name,
			nic.ErrGone))
		return
	}
	a := l.Attrs()
	w.upOrDown(a.RawFlags&unix.IFF_UP != 0)
	if w.o.MTU > 0 {
		what := ""
		if a.MTU > w.o.MTU {
			what = fmt.Sprintf("the interface's MTU is %d now, and packets of more than %d bytes are lost", a.MTU,
				w.o.MTU)
		}
		w.impair("mtu", what, "start the responder again, or set the MTU back")
	}
	if mac := [6]byte(append(a.HardwareAddr, make([]byte, 6)...)); w.o.OwnMAC && mac != w.last {
		w.last = mac
		w.impair("mac", fmt.Sprintf(
			"the interface's MAC has changed to %v: requests to it are lost until the responder has it, too",
			net.HardwareAddr(mac[:])),
			"none, or start the responder again if this lasts")
		select {
		case <-w.mac: // only the last one matters
		default:
		}
		w.mac <- mac
	}
	w.compareAddresses()
}

// compareAddresses looks for addresses that the kernel got meanwhile.
func (w *Watch) compareAddresses() {
	if len(w.o.Addresses) == 0 {
		return
	}
	owned, err := w.i.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return
	}
	what := ""
	for _, p := range w.o.Addresses {
		if slices.ContainsFunc(owned, func(a netlink.Addr) bool {
			ip, ok := netip.AddrFromSlice(a.IP)
			return ok &&
				ip.Unmap() == p.Addr()
		}) {
			what = fmt.Sprintf("the kernel owns %v now, and answers too: every request gets two replies", p.Addr())
		}
	}
	w.impair("address", what, "remove the address from this host's interfaces, or use driver afxdp or xdp")
}

func (w *Watch) upOrDown(up bool) {
	switch {
	case !up && w.o.DownLimit == 0:
		w.fail(fmt.Errorf("interface %s: %w: it was set down while in use", w.i.Name, nic.ErrDown))
	case !up && w.downAt.IsZero():
		w.downAt = time.Now()
		w.impair("down", fmt.Sprintf("the interface is down: no request arrives; waiting %v for it", w.o.DownLimit),
			"ip link set "+w.i.Name+" up")
		w.expired = time.AfterFunc(w.o.DownLimit, w.expire)
	case up && !w.downAt.IsZero():
		w.o.Log.Log(context.Background(), nic.Notice, "the interface is up again", "interface", w.i.Name, "down",
			time.Since(w.downAt).Round(time.Millisecond))
		w.downAt = time.Time{}
		w.expired.Stop()
		w.impair("down", "", "")
	}
}

// expire ends the wait for an interface that is down.
func (w *Watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && !w.downAt.IsZero() && time.Since(w.downAt) >= w.o.DownLimit {
		w.fail(fmt.Errorf("interface %s: %w for %v (nic.down_limit)", w.i.Name, nic.ErrDown, w.o.DownLimit))
	}
}

func (w *Watch) fail(err error) { w.fault.CompareAndSwap(nil, &err) }
