// Package early ends a process that can open next to no files, with an error that names the limit. Its init runs before
// those packages that open a file when they are initialized (protobuf's), for which the Go runtime's poller would end
// the process with a stack trace: it depends on package syscall alone, and Go initializes a package as soon as its
// dependencies are.
package early

import (
	"strconv"
	"syscall"
)

func init() {
	const first = 8
	var open [first]int
	n := 0
	for ; n < first; n++ {
		fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		open[n] = fd
	}
	for _, fd := range open[:n] {
		syscall.Close(fd)
	}
	var l syscall.Rlimit
	if n < first && syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		syscall.Write(2, []byte("the start needs 8 more open files, and only "+strconv.Itoa(n)+
			" can be opened (the limit of open files is "+
			strconv.FormatUint(l.Max, 10)+": raise it with ulimit -n or LimitNOFILE=)\n"))
		syscall.Exit(1)
	}
}
