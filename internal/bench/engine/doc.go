// Package engine sends probes and times their replies: one outstanding at a time (closed loop), or at a rate that
// does not wait for replies (open loop). It runs on the calling thread, polls, and allocates nothing while it
// measures.
//
// In the open loop each probe has an intended moment of sending, fixed beforehand. Its round trip is kept twice: from
// that moment, and from the moment when it was really sent. If the sender or the peer stalls, probes queue up behind
// the stall; only the first of the two shows what that cost them (coordinated omission is the name of leaving it
// out).
package engine
