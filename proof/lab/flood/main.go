// Flood sends UDP datagrams of all sizes to an echo service, a window of them at a time, and checks every byte of the
// replies. It runs in the lab's guest: "flood ADDRESS COUNT MAX". It prints its counts, and fails if a datagram is lost
// or wrong.
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

// patience is the time without a reply after which datagrams count as lost; it allows for a busy machine.
const patience = 15 * time.Second

// window is the number of bytes in flight.
const window = 32 << 10

// room is the size of the socket's receive buffer while this program is not running. The kernel counts a driver's whole
// buffers, so a hundred small datagrams may exceed the default size.
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
	sent, got, out := 0, 0, 0
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
			return fmt.Errorf("%d of %d came back; for %v these did not: %v", got, sent, patience,
				missing(seen[:sent], top))
		}
		if err != nil {
			return fmt.Errorf("%d of %d came back: %w", got, sent, err)
		}
		i := int(binary.BigEndian.Uint32(buf))
		if i >= sent || seen[i] || string(buf[:n]) != string(datagram(i, top)) {
			return fmt.Errorf("datagram %d of %d bytes is wrong or came twice", i, n)
		}
		seen[i] = true
		got++
		out -= n
	}
	fmt.Printf("flood: %d came back in %v\n", got, time.Since(start).Round(time.Millisecond))
	return nil
}

// missing lists numbers and sizes of the datagrams without a reply.
func missing(seen []bool, top int) (all []string) {
	for i, there := range seen {
		if !there {
			all = append(all, fmt.Sprintf("%d (%d bytes)", i, len(datagram(i, top))))
		}
	}
	return all
}

// widen sets the socket's buffer size, or the greatest permitted size without the privilege to exceed it.
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

// datagram returns datagram i, which contains its number, and whose size and content are derived from it.
func datagram(i, top int) []byte {
	b := make([]byte, 4+i*37%(top-3))
	binary.BigEndian.PutUint32(b, uint32(i))
	for k := 4; k < len(b); k++ {
		b[k] = byte(i + k*7)
	}
	return b
}
