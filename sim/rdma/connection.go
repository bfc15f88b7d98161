package rdma

import (
	"errors"
	"time"
)

// Kind is the kind of a request.
type Kind uint8

const (
	Nop Kind = iota
	Send
	Write
	Read
)

// Segment is a part of a message: inline bytes of the work request, or memory.
type Segment struct {
	Inline []byte // nil for memory
	Key    uint32
	At     uint64
	N      int // bytes
}

// Request is a work request that an acknowledgement completes.
type Request struct {
	Index     uint32 // used by the model
	Op        uint8  // used by the model
	Kind      Kind
	Immediate []byte // four bytes, or nil for none; for Send and Write
	Signaled  bool   // a completion is requested; used by the model
	Solicited bool
	At        uint64 // remote address and key, for Write and Read
	RKey      uint32
	List      []Segment
	Length    int   // of List
	Broken    error // why the work request itself is invalid: it fails when it is its turn

	first   uint32 // packet sequence number
	packets int
	sent    int // packets sent; for a Read, 1 once it was requested
	acked   int // packets acknowledged, of an incomplete message
	got     int // packets of a Read's response
}

// Fault is the reason why a request failed.
type Fault uint8

const (
	Flushed         Fault = iota
	Local                 // an error of Queue.Gather or Queue.Scatter
	RemoteInvalid         // the peer refused the request
	RemoteAccess          // the peer refused access to its memory
	RemoteOperation       // the peer failed to execute it
	Retries               // no response after all retries
	RNRRetries            // the peer had no receive request after all retries
)

// Received is a message that arrived and used a receive request.
type Received struct {
	Index     uint32 // of the receive request
	N         int    // bytes
	Write     bool   // an RDMA write with immediate data
	Immediate []byte // four bytes, or nil for none
	Solicited bool
}

// Event is an event that is counted.
type Event uint8

const (
	AckTimeout Event = iota
	RNRNaks
	SequenceNaks
	Duplicates
	OutOfSequence
	OutOfBuffer
	WriteRequests
	ReadRequests
)

// ErrRoom is returned by Queue.Scatter if a message is longer than its receive request.
var ErrRoom = errors.New("the message found no room")

// ErrAccess is returned by Queue.ReadMemory and Queue.WriteMemory if the key does not allow the access.
var ErrAccess = errors.New("access is not granted")

// Queue is implemented by a model's queue pair for its connection. Its methods must not call the connection.
type Queue interface {
	Now() time.Duration
	// OnWire reports whether the peer has not taken all packets off the wire. No acknowledgement is overdue then.
	OnWire() bool
	// Transmit sends a packet to the peer. It adds the peer's queue pair number and the partition key.
	Transmit(p *Packet)
	// Gather reads n bytes of a message from offset off; Scatter writes them.
	Gather(list []Segment, off, n int) ([]byte, error)
	Scatter(list []Segment, off int, b []byte) error
	// ReadMemory and WriteMemory access memory by RDMA with a local key.
	ReadMemory(key uint32, at uint64, n int) ([]byte, error)
	WriteMemory(key uint32, at uint64, b []byte) error
	// TakeReceive removes and returns the next receive request, if there is one.
	TakeReceive() (list []Segment, index uint32, ok bool)
	// Done and Failed complete a request, Received and ReceiveFailed a receive request. err is the queue's own error,
	// or nil.
	Done(r *Request)
	Failed(r *Request, f Fault, err error)
	Received(r Received)
	ReceiveFailed(index uint32, err error)
	// Refused reports that a request of the peer was refused. No completion on this side shows it.
	Refused(f Fault)
	// Fail moves the queue pair to the error state. Flush completes pending requests later.
	Fail()
	Count(e Event)
}

// Connection is one side of a reliable connection: its requester and its responder. The zero value is a connection in
// reset. A model sets the fields as the queue pair's state allows.
type Connection struct {
	MTU      int           // largest payload, bytes
	Timeout  time.Duration // of an acknowledgement; 0 waits without limit
	Retry    int           // retries of a request after a timeout
	RNRRetry int           // retries to a receiver that is not ready; 7 means no limit
	RNRTimer uint8         // code of the time that the peer waits when this side is not ready
	NextPSN  uint32        // of the next request
	Expected uint32        // of the next request of the peer

	requests []*Request // posted and not completed, oldest first
	progress time.Duration
	resume   time.Duration // nothing is sent until then, because the receiver was not ready
	retries  int
	rnrs     int

	messages uint32 // 24 bits: completed messages, for acknowledgements
	nakked   bool   // a gap was reported
	in       *incoming
}

// Pending returns the number of requests that are posted and not completed.
func (c *Connection) Pending() int { return len(c.requests) }

// Flush completes every pending request with an error.
func (c *Connection) Flush(q Queue) (busy bool) {
	busy = len(c.requests) > 0
	for _, r := range c.requests {
		q.Failed(r, Flushed, nil)
	}
	c.requests = nil
	return busy
}

// Receive handles a packet of the connection.
func (c *Connection) Receive(q Queue, p *Packet) {
	switch {
	case p.Op == Ack:
		c.receiveAck(q, p)
	case p.Op >= ReadFirst && p.Op <= ReadOnly:
		c.receiveReadData(q, p)
	case p.Op > ReadRequest:
		c.refuse(q, p, nakInvalid)
	default:
		c.receiveRequest(q, p)
	}
}
