// Flood sends UDP datagrams of all sizes to an echo service, a window of them at a time, and checks every byte that comes
// back. It runs in the lab's guest: "flood ADDRESS COUNT MAX". It prints what it saw, and fails if one was lost or wrong.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// window is how many bytes may be on their way: what a socket's default receive buffer holds, with its overhead.
const window = 32 << 10

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
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := c.Read(buf)
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
	fmt.Printf("flood: %d sent, %d came back in %v\n", sent, got, time.Since(start).Round(time.Millisecond))
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
