package rdma

import "errors"

// incoming is a message that has not arrived completely.
type incoming struct {
	write bool
	took  bool // it used a receive request
	list  []Segment
	index uint32
	n     int // bytes so far
	at    uint64
	rkey  uint32
	total int // of a write
}

// maxRead is the longest RDMA READ, in bytes, that a connection answers.
const maxRead = 1 << 24

// receiveRequest handles a packet of the peer's requester.
func (c *Connection) receiveRequest(q Queue, p *Packet) {
	switch d := after(p.PSN, c.Expected); {
	case d < 0:
		q.Count(Duplicates)
		if p.Op == ReadRequest {
			c.answerRead(q, p, false)
		} else {
			c.acknowledge(q, psn(c.Expected-1), ackOK)
		}
	case d > 0:
		q.Count(OutOfSequence)
		if !c.nakked {
			c.nakked = true
			c.acknowledge(q, c.Expected, nakSequence)
		}
	case p.Op == ReadRequest:
		c.nakked = false
		c.answerRead(q, p, true)
	default:
		c.nakked = false
		c.receiveMessage(q, p)
	}
}

func (c *Connection) acknowledge(q Queue, n uint32, syndrome uint8) {
	q.Transmit(&Packet{Op: Ack, PSN: n, Body: be.AppendUint32(nil, uint32(syndrome)<<24|c.messages)})
}

// refuse sends a NAK and moves the queue pair to the error state.
func (c *Connection) refuse(q Queue, p *Packet, nak uint8) {
	c.acknowledge(q, p.PSN, nak)
	q.Refused(map[uint8]Fault{nakInvalid: RemoteInvalid, nakAccess: RemoteAccess, nakOperation: RemoteOperation}[nak])
	q.Fail()
}

// receiveMessage handles the next packet of a send or a write.
func (c *Connection) receiveMessage(q Queue, p *Packet) {
	write := p.Op >= WriteFirst
	op := p.Op
	if write {
		op -= WriteFirst - SendFirst
	}
	first := op == SendFirst || op == SendOnly || op == SendOnlyImm
	last := op != SendFirst && op != SendMiddle
	imm := op == SendLastImm || op == SendOnlyImm
	head := 0
	if write && first {
		head += RETHSize
	}
	if imm {
		head += 4
	}
	if first == (c.in != nil) || !first && c.in.write != write || len(p.Body) < head {
		c.refuse(q, p, nakInvalid)
		return
	}
	data, in := p.Body[head:], c.in
	if !last && len(data) != c.MTU || len(data) > c.MTU {
		c.refuse(q, p, nakInvalid)
		return
	}
	if first {
		in = &incoming{write: write}
		if write {
			in.at, in.rkey, in.total = be.Uint64(p.Body), be.Uint32(p.Body[8:]), int(be.Uint32(p.Body[12:]))
		}
	}
	if first && !write || write && last && imm {
		if in.list, in.index, in.took = q.TakeReceive(); !in.took {
			q.Count(OutOfBuffer)
			c.acknowledge(q, p.PSN, ackRNR|c.RNRTimer&31)
			return
		}
	}
	c.in = in
	if write {
		if nak := c.write(q, in, data, last); nak != 0 {
			c.refuse(q, p, nak)
			return
		}
	} else if err := q.Scatter(in.list, in.n, data); err != nil {
		nak := uint8(nakOperation)
		if errors.Is(err, ErrRoom) {
			nak = nakInvalid
		}
		c.acknowledge(q, p.PSN, nak)
		q.ReceiveFailed(in.index, err)
		q.Fail()
		return
	}
	in.n += len(data)
	c.Expected = psn(c.Expected + 1)
	if last {
		c.messages = psn(c.messages + 1)
		c.in = nil
	}
	if p.AckRequest {
		c.acknowledge(q, p.PSN, ackOK)
	}
	if last && in.took {
		r := Received{Index: in.index, N: in.n, Write: write, Solicited: p.Solicited}
		if imm {
			r.Immediate = p.Body[head-4 : head]
		}
		q.Received(r)
	}
}

// write executes a packet of an RDMA write. It returns the NAK code, or 0.
func (c *Connection) write(q Queue, in *incoming, data []byte, last bool) uint8 {
	if n := in.n + len(data); n > in.total || last && n < in.total {
		return nakInvalid
	}
	if len(data) == 0 {
		return 0
	}
	if err := q.WriteMemory(in.rkey, in.at+uint64(in.n), data); err != nil {
		return nakOf(err)
	}
	q.Count(WriteRequests)
	return 0
}

func nakOf(err error) uint8 {
	if errors.Is(err, ErrAccess) {
		return nakAccess
	}
	return nakOperation
}

// answerRead sends the response to a read.
func (c *Connection) answerRead(q Queue, p *Packet, next bool) {
	if len(p.Body) < RETHSize || next && c.in != nil {
		c.refuse(q, p, nakInvalid)
		return
	}
	at, key, n := be.Uint64(p.Body), be.Uint32(p.Body[8:]), int(be.Uint32(p.Body[12:]))
	if n > maxRead {
		c.refuse(q, p, nakInvalid)
		return
	}
	var data []byte
	if n > 0 {
		var err error
		if data, err = q.ReadMemory(key, at, n); err != nil {
			c.refuse(q, p, nakOf(err))
			return
		}
	}
	q.Count(ReadRequests)
	packets := max(1, (n+c.MTU-1)/c.MTU)
	if next {
		c.Expected = psn(c.Expected + uint32(packets))
		c.messages = psn(c.messages + 1)
	}
	for i := range packets {
		a := &Packet{Op: ReadMiddle, PSN: psn(p.PSN + uint32(i))}
		switch {
		case packets == 1:
			a.Op = ReadOnly
		case i == 0:
			a.Op = ReadFirst
		case i == packets-1:
			a.Op = ReadLast
		}
		if a.Op != ReadMiddle {
			a.Body = be.AppendUint32(nil, ackOK<<24|c.messages)
		}
		a.Body = append(a.Body, data[i*c.MTU:min(n, (i+1)*c.MTU)]...)
		q.Transmit(a)
	}
}
