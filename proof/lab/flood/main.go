// Flood sends UDP datagrams of all sizes to an echo service, a window of them at a time, and checks every byte that comes
// back. It runs in the lab's guest: "flood ADDRESS COUNT MAX". What does not come back is sent again, as often as one in a hundred
// datagrams may be lost, and told. It prints what it saw, and fails if more are lost, or one is wrong.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long nothing may come back before datagrams count as lost: a busy machine takes its time.
const patience = 15 * time.Second

// window is how many bytes may be on their way.
const window = 32 << 10

// room is how much memory may wait in the socket while this program is not run. The kernel counts whole buffers of a driver, so that
// a hundred small datagrams may take more than a socket has by default.
const room = 8 << 20

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "flood:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: flood ADDRESS COUNT MAX")
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	top, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	c, err := net.Dial("udp", os.Args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := widen(c.(*net.UDPConn)); err != nil {
		return err
	}
	seen := make([]bool, count)
	buf := make([]byte, 65536)
	sent, got, out, again := 0, 0, 0, 0
	start := time.Now()
	for got < count {
		for ; sent < count && (out == 0 || out+top < window); sent++ {
			n, err := c.Write(datagram(sent, top))
			if err != nil {
				return err
			}
			out += n
		}
		c.SetReadDeadline(time.Now().Add(patience))
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			for i := range sent {
				if seen[i] {
					continue
				}
				if again++; again > 1+count/100 {
					return fmt.Errorf("%d of %d came back, and %d were sent again: %w", got, sent, again-1, err)
				}
				fmt.Printf("flood: datagram %d of %d, %d bytes, did not come back in %v: sent again\n", i, sent, len(datagram(i, top)), patience)
				if _, err := c.Write(datagram(i, top)); err != nil {
					return err
				}
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%d of %d came back: %w", got, sent, err)
		}
		i := int(binary.BigEndian.Uint32(buf))
		if i < sent && seen[i] && again > 0 {
			continue // it was late, not lost
		}
		if i >= sent || seen[i] || string(buf[:n]) != string(datagram(i, top)) {
			return fmt.Errorf("datagram %d of %d bytes is wrong or came twice", i, n)
		}
		seen[i] = true
		got++
		out -= n
	}
	fmt.Printf("flood: %d sent, %d of them again, %d came back in %v\n", sent+again, again, got, time.Since(start).Round(time.Millisecond))
	return nil
}

// widen gives the socket its room; who may not force that gets as much as the system allows.
func widen(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var forced error
	if err := raw.Control(func(fd uintptr) {
		forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)
	}); err != nil {
		return err
	}
	if forced != nil {
		return c.SetReadBuffer(room)
	}
	return nil
}

// datagram i has its number, and a size and content that follow from it.
func datagram(i, top int) []byte {
	b := make([]byte, 4+i*37%(top-3))
	binary.BigEndian.PutUint32(b, uint32(i))
	for k := 4; k < len(b); k++ {
		b[k] = byte(i + k*7)
	}
	return b
}
