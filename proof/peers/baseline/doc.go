// Package baseline starts the programs that the responder is compared with: other echo servers as processes, a UDP echo
// server that polls its socket, and a polling loop in C.
package baseline
