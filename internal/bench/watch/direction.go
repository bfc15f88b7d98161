package watch

// direction tells which way probes were lost, from the numbers of a STAMP reflector that counts its own packets (RFC 8762 §4.3: the
// stateful mode). A reflector that repeats the sender's numbers tells nothing, and is known by that: the sender leaves out its number
// 1, so that the count of one that keeps state differs from it from there on.
type direction struct {
	stateful          bool
	forward, backward int64 // lost on the way there, and on the way back
	restarts          int64 // times that the reflector restarted its count

	seen   bool
	last   pair
	copies int // replies in a row with the sender's own number
}

// pair are a probe's number and the one that the reflector gave its reply.
type pair struct{ sender, far uint32 }

// copiesNeeded are the replies in a row with the sender's number after which a reflector counts as one without state.
// One with state can give such a number by chance, when it restarted its count.
const copiesNeeded = 3

// reply takes the numbers of one reply. Replies that were overtaken are left out: the later one has told already what both do.
func (d *direction) reply(sender, far uint32) {
	if sender == far {
		d.copies++
	} else {
		d.copies = 0
	}
	switch {
	case sender < 2: // before the number that is left out nothing can be told
		return
	case d.copies >= copiesNeeded:
		d.stateful, d.seen = false, false
		return
	case sender == far:
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
	case ahead <= 0: // overtaken: it was counted as lost on the way back, and is not
		if counted < 0 && d.backward > 0 {
			d.backward--
		}
		return
	case counted <= 0 || counted > ahead: // another count: the reflector was started again, or forgot the session
		d.restarts++
	default:
		d.forward += ahead - counted
		d.backward += counted - 1
	}
	d.last = p
}
