package nic

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"

	"github.com/rebound-nic/rebound/fastpath"
)

// Port is an open network interface: its description, link and counters. The interfaces below answer or send its frames
// or messages. A port that answers by itself, in the kernel or on the card, implements none of them.
//
// All methods may be called from any goroutine, at any time before Close.
type Port interface {
	Info() Info
	Link() (Link, error)
	ReadStats(*Stats) error

	// Close stops DMA, detaches what was attached, and frees all memory. No method may be called afterwards.
	Close() error
}

// Answerer is a port whose queues are served by polling loops in this process.
type Answerer interface {
	Port

	// Serve polls queue and answers through r until stop is set. It owns the queue's receive and transmit rings while
	// it runs. It returns nil when stopped, and an error if the device failed in a way that the driver could not fix.
	// It may be called again after it has returned. It must run on a locked OS thread, and each queue needs a separate
	// Responder. The responder calls it pinned (polling.Pin): it does not block, and makes system calls through
	// RawSyscall only.
	Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error
}

// Prober is a port that a bench uses to send and receive. Send and Recv own the rings of queue 0 unless Serve runs on
// it, and may be called from one goroutine only.
type Prober interface {
	Port

	// Send sends one frame (without FCS) at once. It returns ErrFull if the transmit ring has no room, and ErrFrameSize
	// if the frame is longer than the MTU allows or shorter than an Ethernet header.
	Send(frame []byte) error

	// Recv copies the next received frame into buf without waiting; n is 0 if there is none. at is polling.TSC() when
	// the host saw the frame.
	Recv(buf []byte) (n int, at int64, err error)
}

// Device is a port with both roles. Every user-space driver implements it.
type Device interface {
	Answerer
	Prober
}

// Impaired is a port on the kernel's interface that knows when requests are lost, or answered twice, because of the
// interface.
type Impaired interface {
	// Impaired returns the reasons of Impairments that apply.
	Impaired() []string
}

// Followed is a port on the kernel's interface that answers with the interface's own MAC.
type Followed interface {
	// MACChanged delivers the interface's MAC when it has changed. The receiver stops the loops, gives the MAC to its
	// responders, calls FollowMAC and starts the loops again.
	MACChanged() <-chan [6]byte

	// FollowMAC changes the MAC of the port's program, if it has one, and what Info returns, and tells the neighbours.
	FollowMAC(mac [6]byte) error
}

// Impairments are the reasons that Impaired returns.
var Impairments = []string{"down", "mac", "mtu", "address", "queues"}

// Options are the parameters for opening a queue of any device. A zero field means the driver's default. Options of a
// single driver are in that driver's package.
type Options struct {
	Device   string // an interface name, a PCI address ("0000:03:00.0") or "vfio-user:PATH", depending on the driver
	Queues   int    // queue pairs to open, one per core; 1 if zero
	RingSize int    // descriptors in each ring, a power of two
	// the largest layer-3 packet in bytes; if zero, the interface's own, or 1500 if the card reports none
	MTU int
	MAC [6]byte

	// Match describes what a responder answers, Steer what a bench receives. A driver that can select frames (afxdp's
	// program, flow tables) receives only those and leaves all others to the kernel. At most one of them is set. With
	// neither, the driver receives every frame, which suits a port with no other user.
	Match *fastpath.Config
	Steer *Steer

	// Filter is a classic BPF program (linux/filter.h) that afpacket attaches to its sockets, so that its ring and its
	// count of dropped frames are free of other traffic. nil for its own, which excludes TCP. Other drivers ignore it.
	Filter []bpf.RawInstruction

	// Qdisc has afpacket send through the interface's queueing discipline and the filters on its egress (tc). Other
	// drivers bypass them always.
	Qdisc bool

	// DownLimit is how long a responder on the kernel's interface waits for it while it is down. 0 means not at all:
	// ErrDown at once.
	DownLimit time.Duration

	Log *slog.Logger // never nil when a command opens the device
}

// Steer selects the replies that a bench receives on a port that its host uses too: frames from Remote to Local. They
// may carry up to two VLAN tags.
type Steer struct {
	Local  netip.Addr   // the source address of the bench's probes
	Also   []netip.Addr // more of them, of any family; only if Remote is the zero Addr
	Remote netip.Addr   // the target, of the same family; the zero Addr means any target

	// EchoIDs are the identifiers of the ICMP or ICMPv6 echo replies to receive. A user's ping on the same host has
	// another identifier and keeps its replies.
	EchoIDs []uint16

	// UDPPorts are the local ports whose datagrams to receive, from any port of Remote.
	UDPPorts []uint16

	// Neighbours means that the kernel does not own Local: the driver then also receives ARP requests and replies and
	// neighbour solicitations and advertisements between Local and Remote, and the bench answers for Local. It must be
	// unset if Local is the kernel's, because taking the replies to the kernel's own requests would cut the host off
	// from Remote. The bench then reads the kernel's neighbour table instead.
	Neighbours bool
}

// Backend is what a driver runs on. Numbers from a Sim are never shown as the latency of a card.
type Backend string

const (
	Silicon Backend = "silicon" // a PCI function of this machine
	Virtual Backend = "virtual" // a virtio function: implemented by the hypervisor, or by a card that emulates one
	Sim     Backend = "sim"     // one of our device models
	Socket  Backend = "socket"  // the kernel's driver, through a socket
)

// Info describes an open device. It is part of every report.
type Info struct {
	Driver  string  `json:"driver"`        // "afxdp", "ixgbe"
	Device  string  `json:"device"`        // what the user named: "eth1", "0000:03:00.0", "vfio-user:/run/nic0"
	Model   string  `json:"model"`         // "Intel 82599ES (8086:10fb rev 01)", or the kernel driver's name
	MAC     string  `json:"mac"`           // "02:00:00:00:00:01"
	MTU     int     `json:"mtu"`           // bytes of layer 3
	Queues  int     `json:"queues"`        // queue pairs open
	Backend Backend `json:"backend"`       //
	Via     string  `json:"via,omitempty"` // "verbs" beside the kernel's driver of the card
	// how a reply reaches the device: "xdp-drv zero-copy", "tail", "blueflame full", "llq 128"
	Push  string   `json:"push"`
	Notes []string `json:"notes,omitempty"` // settings in force and fallbacks, in words

	// PartialChecksums reports that received frames may come from a kernel on this machine with UDP checksums left for
	// a device to complete. The responder passes it to fastpath.Config.
	PartialChecksums bool `json:"-"`

	// NoDropCounter reports that the device does not count frames that it drops for lack of a receive buffer, so that
	// Stats.RxDropped stays 0.
	NoDropCounter bool `json:"-"`

	// NoByteCounter reports that the bytes of frames are not counted, so that Stats.RxBytes and TxBytes stay 0.
	NoByteCounter bool `json:"-"`
}

// Link is the state of the port.
type Link struct {
	Up    bool
	Speed int // Mbit/s, 0 if unknown

	// Waits is what a link that is down is waiting for, if the device reports it.
	Waits string
}

// RestartsFinished is the name in Stats.Extra of how many restarts are over. Resets counts a restart when it begins.
const RestartsFinished = "restarts_finished"

// Stats are totals over all queues since the device was opened. Bytes are without FCS.
type Stats struct {
	RxFrames, RxBytes uint64
	TxFrames, TxBytes uint64
	RxDropped         uint64            // frames that reached the device but had no descriptor or buffer
	RxErrors          uint64            // frames that the device received with errors
	TxDropped         uint64            // replies dropped because the transmit ring was full
	TxErrors          uint64            // frames that the device failed to send
	Resets            uint64            // resets and restarts of the device while open
	Extra             map[string]uint64 // the device's own counters, by the names in its datasheet
}
