package watch

// direction determines in which direction probes were lost, from the numbers of a STAMP reflector that counts its own
// packets (RFC 8762 §4.3: the stateful mode). A stateless reflector, which repeats the sender's numbers, gives no
// information. To recognise it, the sender skips its number 1, so that the count of a stateful reflector differs from
// it from there on.
type direction struct {
	stateful          bool
	forward, backward int64 // lost on the way there, and on the way back
	restarts          int64 // times that the reflector restarted its count

	seen   bool
	last   pair
	copies int  // consecutive replies with the sender's own number
	twice  bool // the network has duplicated probes, so that a stateful reflector's count may be the sender's number
}

// mostCopies bounds the copies of probes that a reflector counts between two replies without having restarted its
// count.
const mostCopies = 16

// duplicate processes the numbers of a further reply to a probe. The reflector counted another packet if its number is
// new: the network duplicated the probe on its way there, which hides no loss.
func (d *direction) duplicate(far uint32) {
	if n := int32(far - d.last.far); d.seen && n > 0 && n <= mostCopies {
		d.last.far, d.twice = far, true
	}
}

// pair is a probe's number and the reflector's number of its reply.
type pair struct{ sender, far uint32 }

// copiesNeeded is the number of consecutive replies with the sender's number after which a reflector counts as
// stateless. A stateful reflector can use such a number by chance, after it restarted its count.
const copiesNeeded = 3

// reply processes the numbers of one reply: sender counts the probes from its source port, far is the reflector's, and
// copied means that far is the sender's number on the wire. Replies that were overtaken are ignored: the later one has
// already shown both counts.
func (d *direction) reply(sender, far uint32, copied bool) {
	if copied {
		d.copies++
	} else {
		d.copies = 0
	}
	switch {
	case sender < 2: // before the skipped number nothing can be determined
		return
	case d.twice && d.stateful:
	case d.copies >= copiesNeeded:
		d.stateful, d.seen = false, false
		return
	case copied:
		return
	}
	d.stateful = true
	p := pair{sender, far}
	if !d.seen {
		d.last, d.seen = p, true
		return
	}
	ahead, counted := int64(int32(p.sender-d.last.sender)), int64(int32(p.far-d.last.far))
	switch {
	case ahead <= 0: // overtaken: it was counted as lost on the way back, but is not
		if counted < 0 && d.backward > 0 {
			d.backward--
		}
		return
	case counted > ahead && counted <= ahead+mostCopies: // the network duplicated probes on the way there: what it lost meanwhile is unknown
	case counted <= 0 || counted > ahead: // a new count: the reflector was restarted, or forgot the session
		d.restarts++
	default:
		d.forward += ahead - counted
		d.backward += counted - 1
	}
	d.last = p
}
