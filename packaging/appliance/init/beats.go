package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// notifications are what a program sends to its service manager (sd_notify(3)). silent is closed when it has sent no
// WATCHDOG=1 for longer than silence.
type notifications struct {
	*net.UnixConn
	name   string
	silent chan struct{}
}

const silence = 90 * time.Second

var opened atomic.Int64

func listenForBeats() (*notifications, error) {
	name := fmt.Sprintf("@rebound/notify/%d", opened.Add(1))
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	n := &notifications{c, name, make(chan struct{})}
	go n.follow()
	return n, nil
}

func (n *notifications) follow() {
	b := make([]byte, 4096)
	for {
		size, err := n.Read(b)
		switch {
		case err == nil:
			if bytes.Contains(b[:size], []byte("WATCHDOG=1")) {
				n.SetReadDeadline(time.Now().Add(silence))
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			close(n.silent)
			return
		default: // closed
			return
		}
	}
}
