// Package rival starts what the responder is held against: other echo servers as processes, a UDP echo that asks its socket
// without end, and a polling loop in C.
package rival
