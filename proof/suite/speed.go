package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is how fast this machine does fixed jobs. The durations of two runs compare only where these are alike.
type machine struct {
	hash    time.Duration // 64 MiB
	compile time.Duration // a file of 300 functions without imports, which no cache has
	wake    time.Duration // one thread by another, of two that wait for each other: what most tests here do
}

func (m machine) String() string {
	return fmt.Sprintf("hashes 64 MiB in %v, compiles a fixed file in %v and wakes a thread in %v",
		m.hash.Round(time.Millisecond), m.compile.Round(time.Millisecond), m.wake.Round(100*time.Nanosecond))
}

// speed measures this machine.
func speed() (m machine, err error) {
	if m.wake, err = wake(); err != nil {
		return m, err
	}
	start := time.Now()
	block, sum := make([]byte, 1<<20), sha256.New()
	for range 64 {
		sum.Write(block)
	}
	sum.Sum(nil)
	m.hash = time.Since(start)

	dir, err := os.MkdirTemp("", "suite-speed-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir)
	var b strings.Builder
	b.WriteString("package fixed\n")
	for i := range 300 {
		fmt.Fprintf(&b, "func F%d(a []int, m map[string]int) (n int) {\n\tfor i, v := range a {\n\t\tif v%%%d == i {\n\t\t\tn += m[string(rune(v))] * %d\n\t\t}\n\t}\n\treturn n\n}\n", i, i+2, i)
	}
	file := filepath.Join(dir, "fixed.go")
	if err = os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return m, err
	}
	start = time.Now()
	if out, err := exec.Command("go", "tool", "compile", "-p", "fixed", "-o", filepath.Join(dir, "fixed.o"),
		file).CombinedOutput(); err != nil {
		return m, fmt.Errorf("go tool compile: %w\n%s", err, out)
	}
	m.compile = time.Since(start)
	return m, nil
}

// wake returns the time from one thread's write of a byte until another, which waits for it, has read it.
func wake() (time.Duration, error) {
	const turns = 10_000
	there, back := [2]int{}, [2]int{}
	if err := errors.Join(unix.Pipe2(there[:], unix.O_CLOEXEC), unix.Pipe2(back[:], unix.O_CLOEXEC)); err != nil {
		return 0, err
	}
	relay := func(from, to int) (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer unix.Close(to) // the other stops waiting
		var b [1]byte
		for n := 0; n < turns && err == nil; n++ {
			if _, err = unix.Read(from, b[:]); err == nil {
				_, err = unix.Write(to, b[:])
			}
		}
		return err
	}
	other := make(chan error)
	start := time.Now()
	go func() { other <- relay(there[0], back[1]) }()
	_, err := unix.Write(there[1], make([]byte, 1))
	err = errors.Join(err, relay(back[0], there[1]), <-other)
	took := time.Since(start)
	unix.Close(there[0])
	unix.Close(back[0])
	return took / (2 * turns), err
}
