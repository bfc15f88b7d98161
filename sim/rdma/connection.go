package rdma

import (
	"errors"
	"time"
)

// Kind is what a request requests.
type Kind uint8

const (
	Nop Kind = iota
	Send
	Write
	Read
)

// Segment is a part of a message: bytes that came with the work request, or memory.
type Segment struct {
	Inline []byte // nil for memory
	Key    uint32
	At     uint64
	N      int // bytes
}

// Request is a work request that an acknowledgement completes.
type Request struct {
	Index     uint32 // of the model's
	Op        uint8  // of the model's
	Kind      Kind
	Immediate []byte // four bytes, or nil for none; of Send and Write
	Signaled  bool   // a completion is wanted; of the model's
	Solicited bool
	At        uint64 // remote address and key, of Write and Read
	RKey      uint32
	List      []Segment
	Length    int   // of List
	Broken    error // what is wrong with the work request itself: it fails in its turn

	first   uint32 // packet sequence number
	packets int
	sent    int // packets that were sent; of a Read 1 once it was requested
	acked   int // packets that were acknowledged, of a message that is not whole
	got     int // packets of a Read's answer
}

// Fault is why a request failed.
type Fault uint8

const (
	Flushed         Fault = iota
	Local                 // an error of Queue.Gather or Queue.Scatter
	RemoteInvalid         // the peer refused the request
	RemoteAccess          // the peer refused access to its memory
	RemoteOperation       // the peer could not do it
	Retries               // no answer came, after all retries
	RNRRetries            // the peer had no receive request, after all retries
)

// Received is a message that arrived and took a receive request.
type Received struct {
	Index     uint32 // of the receive request
	N         int    // bytes
	Write     bool   // an RDMA write with immediate data
	Immediate []byte // four bytes, or nil for none
	Solicited bool
}

// Event is something to count.
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

// ErrRoom is an error of Queue.Scatter: a message is longer than its receive request.
var ErrRoom = errors.New("the message found no room")

// ErrAccess is an error of Queue.ReadMemory and Queue.WriteMemory: the key does not allow it.
var ErrAccess = errors.New("access is not granted")

// Queue is what a model's queue pair does for its connection. No method may call the connection.
type Queue interface {
	Now() time.Duration
	// Transmit puts a packet on the way to the peer. It adds the peer's number and the partition key.
	Transmit(p *Packet)
	// Gather reads n bytes of a message from off on, Scatter writes there.
	Gather(list []Segment, off, n int) ([]byte, error)
	Scatter(list []Segment, off int, b []byte) error
	// ReadMemory and WriteMemory are RDMA, by a key of this side.
	ReadMemory(key uint32, at uint64, n int) ([]byte, error)
	WriteMemory(key uint32, at uint64, b []byte) error
	// TakeReceive takes the next receive request, if there is one.
	TakeReceive() (list []Segment, index uint32, ok bool)
	// Done and Failed complete a request, Received and ReceiveFailed a receive request. err is what the queue itself said, or nil.
	Done(r *Request)
	Failed(r *Request, f Fault, err error)
	Received(r Received)
	ReceiveFailed(index uint32, err error)
	// Refused tells of a request of the peer's that was refused, of which no completion tells on this side.
	Refused(f Fault)
	// Fail brings the queue pair into the error state. What is pending is ended by Flush, later.
	Fail()
	Count(e Event)
}

// Connection is one side of a reliable connection: its requester and its responder. The zero value is a connection in reset; a
// model sets the fields as the queue pair's state allows.
type Connection struct {
	MTU      int           // largest payload, bytes
	Timeout  time.Duration // of an acknowledgement; 0 waits forever
	Retry    int           // times that a request is sent again after a timeout
	RNRRetry int           // times that it is sent again to a receiver that is not ready; 7 forever
	RNRTimer uint8         // code of how long the peer leaves this side alone that is not ready
	NextPSN  uint32        // of the next request
	Expected uint32        // of the next request of the peer

	requests []*Request // posted and not completed, oldest first
	progress time.Duration
	resume   time.Duration // a receiver that was not ready is left alone until then
	retries  int
	rnrs     int

	messages uint32 // 24 bits: completed, as acknowledgements say
	nakked   bool   // a gap was reported
	in       *incoming
}

// Pending is how many requests are posted and not completed.
func (c *Connection) Pending() int { return len(c.requests) }

// Flush ends every pending request.
func (c *Connection) Flush(q Queue) (busy bool) {
	busy = len(c.requests) > 0
	for _, r := range c.requests {
		q.Failed(r, Flushed, nil)
	}
	c.requests = nil
	return busy
}

// Receive takes a packet of the connection.
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
