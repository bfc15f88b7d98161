// Package engine sends probes and times their replies: one outstanding at a time (closed loop), or at a rate that does
// not wait for replies (open loop). It runs on the calling thread, polls, and allocates nothing while it measures.
//
// In the open loop each probe has an intended send time, fixed in advance. Its round trip is recorded twice: from that
// time, and from the actual send time. If the sender or the peer stalls, probes queue up behind the stall; only the
// first of the two includes this delay (leaving it out is known as coordinated omission).
package engine
