// Package succession lets a responder replace a running one: it gets the running one's sockets, in which frames wait
// until it polls, so that a restart or an upgrade loses none.
//
// The successor connects to the name with which the predecessor claims an address. It gets the sockets, prepares
// everything, and reports when it is ready. The predecessor then stops its loops, sends where they stopped, and ends.
// If the successor fails before it is ready, the predecessor continues to answer.
package succession
