package nic

import (
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
)

// Port is an open network interface: its description, link and counters. The roles below answer or send its frames or
// messages; a port that answers by itself, in the kernel or on the card, has none of them.
//
// All methods may be called from any goroutine, at any time before Close.
type Port interface {
	Info() Info
	Link() (Link, error)
	ReadStats(*Stats) error

	// Close stops DMA, detaches what was attached, and gives all memory back. No other method is called after it.
	Close() error
}

// Answerer is a port whose queues are answered by a loop in this process.
type Answerer interface {
	Port

	// Serve polls queue and answers through r until stop is set. It owns the queue's receive and transmit rings while
	// it runs. It returns nil then, and an error if the device failed in a way that the driver could not fix. It may
	// be called again after it returned. It must run on a locked OS thread, and each queue has its own Responder. The
	// responder calls it pinned (polling.Pin): it does not block, and makes syscalls through RawSyscall only.
	Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error
}

// Prober is a port that a bench sends and receives through. Send and Recv own the rings of queue 0 where no Serve does, and
// are for one goroutine.
type Prober interface {
	Port

	// Send puts one frame (without FCS) on the wire now. It returns ErrFull if the transmit ring has no room, and
	// ErrFrameSize if the frame is longer than the MTU allows or shorter than an Ethernet header.
	Send(frame []byte) error

	// Recv copies the next received frame into buf without waiting: n is 0 if there is none. at is polling.TSC() when the
	// frame was seen by the host.
	Recv(buf []byte) (n int, at int64, err error)
}

// Device is a port with both roles, as every driver in user space has them.
type Device interface {
	Answerer
	Prober
}

// Options is what opening a queue of any device takes. A zero field means the driver's default. What one driver alone
// takes is in its own package's Options.
type Options struct {
	Device   string // an interface name, a PCI address ("0000:03:00.0") or "vfio-user:PATH", as the driver takes it
	Queues   int    // queue pairs to open, one for each core; 1 if zero
	RingSize int    // descriptors in each ring, a power of two
	MTU      int    // the largest layer-3 packet in bytes; the interface's own if zero, 1500 on a card that tells none
	MAC      [6]byte

	// Match is what will be answered, Steer what a bench waits for: a driver that can pick frames (afxdp's program, flow
	// tables) takes only those and leaves all others to the kernel. At most one of them is set. With neither, every frame
	// that arrives is taken, which is fit for a port that nothing else uses.
	Match *fastpath.Config
	Steer *Steer

	Log *slog.Logger // never nil once a command opened the device
}

// Steer names the answers that a bench waits for, and nothing else that arrives on a port which its host uses too: its
// frames come from Remote and go to Local. They may carry up to two VLAN tags.
type Steer struct {
	Local  netip.Addr   // the source address of what the bench sends
	Also   []netip.Addr // further ones, of any family; only where Remote is anyone
	Remote netip.Addr   // the target, of the same family; the zero Addr is anyone, for many targets

	// EchoIDs are the identifiers of the ICMP or ICMPv6 echo replies to take. A ping that the host's user runs has
	// another one, and keeps its replies.
	EchoIDs []uint16

	// UDPPorts are the local ports whose datagrams to take, from whatever port of Remote they come.
	UDPPorts []uint16

	// Neighbours says that the kernel does not own Local: ARP requests and replies and neighbour solicitations and
	// advertisements between Local and Remote are then taken, and the bench answers for Local. It stays unset where Local
	// is the kernel's: taking the answers to the kernel's own probes would cut the host off from Remote, and the bench
	// reads the kernel's neighbour table instead.
	Neighbours bool
}

// Backend says what is behind a driver. A number from a Sim is never shown as the latency of a card.
type Backend string

const (
	Silicon Backend = "silicon" // a PCI function of this machine
	Virtual Backend = "virtual" // a virtio function: a program of the hypervisor, or a card that looks like one
	Sim     Backend = "sim"     // a device model of ours
	Socket  Backend = "socket"  // the kernel's driver, through a socket
)

// Info describes an open device. It is part of every report.
type Info struct {
	Driver  string   `json:"driver"`          // "afxdp", "ixgbe"
	Device  string   `json:"device"`          // what the user named: "eth1", "0000:03:00.0", "vfio-user:/run/nic0"
	Model   string   `json:"model"`           // "Intel 82599ES (8086:10fb rev 01)", or the kernel driver's name
	MAC     string   `json:"mac"`             // "02:00:00:00:00:01"
	MTU     int      `json:"mtu"`             // bytes of layer 3
	Queues  int      `json:"queues"`          // queue pairs open
	Backend Backend  `json:"backend"`         //
	Push    string   `json:"push"`            // how a reply reaches the device: "xdp-drv zero-copy", "tail", "blueflame full", "llq 128"
	Notes   []string `json:"notes,omitempty"` // what is in force or was fallen back to, in words

	// PartialChecksums says that received frames may come from a kernel on this machine with UDP checksums that were left
	// to a device to complete. It is what a responder's fastpath.Config wants to be told.
	PartialChecksums bool `json:"-"`

	// NoDropCounter says that the device does not count the frames that it drops for lack of a receive buffer:
	// Stats.RxDropped stays 0.
	NoDropCounter bool `json:"-"`
}

// Link is the state of the port.
type Link struct {
	Up    bool
	Speed int // Mbit/s, 0 if unknown

	// Waits says what a link that is not up waits for, where the device knows more than that it has none.
	Waits string
}

// Stats are totals since the device was opened, of all queues. Bytes are without FCS.
type Stats struct {
	RxFrames, RxBytes uint64
	TxFrames, TxBytes uint64
	RxDropped         uint64            // frames that reached the device and not a Poll: no descriptor, no buffer
	RxErrors          uint64            // frames that the device received broken
	TxDropped         uint64            // replies that found the transmit ring full
	TxErrors          uint64            // frames that the device failed to send
	Resets            uint64            // times the device was reset and restarted while open
	Extra             map[string]uint64 // the device's own counters by their names in its datasheet
}
