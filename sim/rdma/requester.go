package rdma

import "time"

const (
	windowPackets = 64 // sent and not acknowledged
	askEach       = 16 // packets within a message between requests for an acknowledgement

	// MaxPending is the largest number of requests that a model may post.
	MaxPending = 128
)

// Syndromes of an acknowledgement (9.7.5.2.1): the high three bits are the kind.
const (
	ackOK        = 0x1f // no limit on sending
	ackRNR       = 0x20 // receiver not ready, with its timer
	nakSequence  = 0x60
	nakInvalid   = 0x61
	nakAccess    = 0x62
	nakOperation = 0x63
)

func (r *Request) last() uint32 { return psn(r.first + uint32(r.packets) - 1) }

// Post queues a request. Step sends it.
func (c *Connection) Post(q Queue, r *Request) {
	r.first = c.NextPSN
	if r.Kind != Nop && r.Broken == nil {
		r.packets = max(1, (r.Length+c.MTU-1)/c.MTU)
		c.NextPSN = psn(c.NextPSN + uint32(r.packets))
	}
	if len(c.requests) == 0 {
		c.progress = q.Now()
	}
	c.requests = append(c.requests, r)
}

// Step sends what the window allows, and checks the timers.
func (c *Connection) Step(q Queue) (busy bool) {
	for len(c.requests) > 0 && (c.requests[0].packets == 0 || c.requests[0].Broken != nil) {
		if r := c.requests[0]; r.Broken != nil {
			c.fail(q, r, Local, r.Broken)
			return true
		}
		c.finish(q, c.requests[0])
		busy = true
	}
	busy = c.send(q) || busy
	c.stepTimers(q)
	return busy
}

func (c *Connection) send(q Queue) (busy bool) {
	if q.Now() < c.resume {
		return false
	}
	flying := 0
	for i, r := range c.requests {
		if r.Broken != nil {
			break
		}
		if r.Kind == Nop {
			continue
		}
		if r.Kind == Read {
			if i > 0 { // one at a time, alone
				break
			}
			if r.sent == 0 {
				c.sendRead(q, r)
				busy = true
			}
			break
		}
		for ; r.sent < r.packets && flying+r.sent-r.acked < windowPackets; r.sent++ {
			if r.Broken = c.sendPacket(q, r); r.Broken != nil { // it fails when the ones before it are done
				return true
			}
			busy = true
		}
		if r.sent < r.packets {
			break
		}
		flying += r.packets - r.acked
	}
	return busy
}

func (c *Connection) sendPacket(q Queue, r *Request) error {
	i, off := r.sent, r.sent*c.MTU
	data, err := q.Gather(r.List, off, min(c.MTU, r.Length-off))
	if err != nil {
		return err
	}
	first, last := i == 0, i == r.packets-1
	p := &Packet{PSN: psn(r.first + uint32(i)), AckRequest: last || i%askEach == askEach-1, Solicited: last &&
		r.Solicited}
	switch {
	case first && last:
		p.Op = SendOnly
	case first:
		p.Op = SendFirst
	case last:
		p.Op = SendLast
	default:
		p.Op = SendMiddle
	}
	if r.Kind == Write {
		p.Op += WriteFirst - SendFirst
		if first {
			p.Body = appendRETH(p.Body, r.At, r.RKey, r.Length)
		}
	}
	if last && r.Immediate != nil {
		p.Op++
		p.Body = append(p.Body, r.Immediate...)
	}
	p.Body = append(p.Body, data...)
	q.Transmit(p)
	return nil
}

// sendRead requests the part of a read that has not arrived.
func (c *Connection) sendRead(q Queue, r *Request) {
	off := r.got * c.MTU
	q.Transmit(&Packet{Op: ReadRequest, PSN: psn(r.first + uint32(r.got)), AckRequest: true,
		Body: appendRETH(nil, r.At+uint64(off), r.RKey, r.Length-off)})
	r.sent = 1
}

// stepTimers sends again what was not acknowledged in time, and gives up after the last retry.
func (c *Connection) stepTimers(q Queue) {
	now := q.Now()
	if c.Timeout == 0 || len(c.requests) == 0 || c.requests[0].sent == 0 || now < c.resume ||
		now-c.progress < c.Timeout {
		return
	}
	if q.OnWire() {
		c.progress = now
		return
	}
	q.Count(AckTimeout)
	if c.retries++; c.retries > c.Retry {
		c.fail(q, c.requests[0], Retries, nil)
		return
	}
	c.progress = now
	c.goBack(psn(c.requests[0].first + uint32(c.requests[0].acked)))
}

// goBack sends everything from a sequence number on again.
func (c *Connection) goBack(to uint32) {
	for _, r := range c.requests {
		switch {
		case r.Kind == Read:
			r.sent = 0
		case r.sent > 0:
			r.sent = max(r.acked, min(r.sent, after(to, r.first)))
		}
	}
}

// fail completes a request with an error and moves the queue pair to the error state.
func (c *Connection) fail(q Queue, r *Request, f Fault, err error) {
	for len(c.requests) > 0 && c.requests[0] != r { // none before it can complete any more
		q.Failed(c.requests[0], Flushed, nil)
		c.requests = c.requests[1:]
	}
	c.requests = c.requests[1:]
	q.Failed(r, f, err)
	q.Fail()
}

// acknowledged completes the requests up to a sequence number.
func (c *Connection) acknowledged(q Queue, to uint32) {
	for len(c.requests) > 0 {
		r := c.requests[0]
		if r.Broken != nil || r.Kind != Nop && (after(to, r.last()) < 0 || r.Kind == Read && r.got < r.packets) {
			break
		}
		c.finish(q, r)
		c.progress, c.retries, c.rnrs = q.Now(), 0, 0
	}
	if len(c.requests) == 0 {
		return
	}
	if r := c.requests[0]; r.Kind != Read && after(to, r.first) >= r.acked && r.packets > 0 {
		r.acked = after(to, r.first) + 1
		c.progress, c.retries = q.Now(), 0
	}
}

func (c *Connection) finish(q Queue, r *Request) {
	c.requests = c.requests[1:]
	q.Done(r)
}

// rnrTimer is the time that a receiver that is not ready requests (table 45), in units of 10 µs.
var rnrTimer = [32]time.Duration{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

func (c *Connection) receiveAck(q Queue, p *Packet) {
	if len(p.Body) < AETHSize || len(c.requests) == 0 || after(p.PSN, c.NextPSN) >= 0 {
		return
	}
	synd := p.Body[0]
	if synd>>5 == 0 {
		c.acknowledged(q, p.PSN)
		return
	}
	c.acknowledged(q, psn(p.PSN-1))
	if len(c.requests) == 0 {
		return
	}
	switch {
	case synd>>5 == ackRNR>>5:
		q.Count(RNRNaks)
		if c.rnrs++; c.RNRRetry != 7 && c.rnrs > c.RNRRetry {
			c.fail(q, c.requests[0], RNRRetries, nil)
			return
		}
		c.resume = q.Now() + rnrTimer[synd&31]*10*time.Microsecond
		c.progress = c.resume
		c.goBack(p.PSN)
	case synd == nakSequence:
		q.Count(SequenceNaks)
		c.goBack(p.PSN)
	case synd == nakInvalid:
		c.fail(q, c.requests[0], RemoteInvalid, nil)
	case synd == nakAccess:
		c.fail(q, c.requests[0], RemoteAccess, nil)
	default:
		c.fail(q, c.requests[0], RemoteOperation, nil)
	}
}

// receiveReadData handles a packet of a read's response.
func (c *Connection) receiveReadData(q Queue, p *Packet) {
	body := p.Body
	if p.Op != ReadMiddle {
		if len(body) < AETHSize {
			return
		}
		body = body[AETHSize:]
	}
	c.acknowledged(q, psn(p.PSN-1)) // it acknowledges all before
	if len(c.requests) == 0 || c.requests[0].Kind != Read {
		return
	}
	r := c.requests[0]
	off := r.got * c.MTU
	switch d := after(p.PSN, psn(r.first+uint32(r.got))); {
	case d < 0:
		return
	case d > 0 || len(body) != min(c.MTU, r.Length-off):
		r.sent = 0 // lost: request the rest again
		return
	}
	if err := q.Scatter(r.List, off, body); err != nil {
		c.fail(q, r, Local, err)
		return
	}
	r.got++
	c.progress, c.retries = q.Now(), 0
	c.acknowledged(q, p.PSN)
}
