// Package baseline starts what the responder is compared with: other echo servers as processes, a UDP echo that asks its
// socket continuously, and a polling loop in C.
package baseline
