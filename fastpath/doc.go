// Package fastpath decides what is answered and rewrites a request into its reply where it lies.
//
// A driver's Poll hands every received frame to it: common requests through leaves that the compiler inlines into the
// Poll, all others through Slow. No function here allocates, locks or keeps a reference to a frame.
package fastpath
