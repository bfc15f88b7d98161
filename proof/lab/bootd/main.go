// Bootd serves DHCP and TFTP on one of the guest's interfaces: "bootd INTERFACE ADDRESS CLIENT FILE...". The first file
// is the one that DHCP names. It prints a line for each requested file, and the information that the client sent about
// itself.
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/rebound-nic/rebound/proof/lab/boot"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bootd:", err)
		os.Exit(1)
	}
}

// service connects the server to sockets.
type service struct {
	mu      sync.Mutex
	dev     string
	server  boot.Server
	sockets map[uint16]*net.UDPConn
	failed  chan error
}

func run() error {
	if len(os.Args) < 5 {
		return fmt.Errorf("usage: bootd INTERFACE ADDRESS CLIENT FILE...")
	}
	s := &service{dev: os.Args[1], sockets: map[uint16]*net.UDPConn{}, failed: make(chan error, 1)}
	b := &s.server
	b.Files = map[string][]byte{}
	b.Asked = func(name string) {
		h := b.Said
		fmt.Printf("asked %s by hardware type %d, %d bytes of address, broadcast %v, client identifier %x\n", name,
			h.Hardware, h.Length, h.Broadcast, h.ID)
	}
	var err error
	if b.Address, err = netip.ParseAddr(os.Args[2]); err != nil {
		return err
	}
	if b.Client, err = netip.ParseAddr(os.Args[3]); err != nil {
		return err
	}
	b.Boot = filepath.Base(os.Args[4])
	for _, name := range os.Args[4:] {
		if b.Files[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	for _, port := range []uint16{boot.DHCPPort, boot.TFTPPort} {
		if _, err := s.open(port); err != nil {
			return err
		}
	}
	s.mu.Unlock()
	fmt.Println("serving")
	return <-s.failed
}

// open opens the socket of a port, once, bound to the interface, because broadcast replies have to leave there.
func (s *service) open(port uint16) (*net.UDPConn, error) {
	if c := s.sockets[port]; c != nil {
		return c, nil
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var bound error
	if err := raw.Control(func(fd uintptr) { bound = syscall.BindToDevice(int(fd), s.dev) }); err != nil {
		return nil, err
	}
	if bound != nil {
		return nil, fmt.Errorf("bind to %s: %w", s.dev, bound)
	}
	s.sockets[port] = c
	go s.receive(port, c)
	return c, nil
}

func (s *service) receive(port uint16, c *net.UDPConn) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err == nil {
			err = s.take(port, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), b[:n])
		}
		if err != nil {
			select {
			case s.failed <- err:
			default:
			}
			return
		}
	}
}

func (s *service) take(port uint16, from netip.AddrPort, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.server.Take(port, from, body)
	if err != nil || d == nil {
		return err
	}
	c, err := s.open(d.Port)
	if err != nil {
		return err
	}
	_, err = c.WriteToUDPAddrPort(d.Body, d.To)
	return err
}
