//go:build cgo

package confine

// withCgo is what glibc starts threads with, in builds with cgo: the race detector's. No filter sees its arguments, so a process could
// be forked by it. The programs that are installed are built without.
var withCgo = []string{"clone3"}
