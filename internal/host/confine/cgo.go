//go:build cgo

package confine

// withCgo lists the calls with which glibc starts threads, in builds with cgo: the race detector's. No filter can see
// their arguments, so they could fork a process. Installed programs are built without cgo.
var withCgo = []string{"clone3"}
