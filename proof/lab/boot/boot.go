// Package boot is a boot server for clients without a disk: DHCP (RFC 2131, over InfiniBand RFC 4390) with the name of
// a file, and TFTP (RFC 1350, options of RFC 2347 to 2349). It receives and returns datagrams; the caller transports
// them over a wire or sockets.
package boot

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Ports of the services.
const (
	DHCPPort   = 67
	TFTPPort   = 69
	clientPort = 68
	firstPort  = 4000 // for transfers: each uses a different port
)

// Server assigns one address to one client. Only one goroutine may use it at a time.
type Server struct {
	Address, Client netip.Addr // the server's address, and the one it assigns, in a /24 network
	Boot            string     // name of the first file
	Files           map[string][]byte
	Asked           func(name string) // called for each requested file; may be nil

	Blocks, Again int // of all files, and how many of them were sent again

	Said Hello // the client's last DHCP message

	transfers map[uint16]*transfer // by server port
}

// Hello is the information that a DHCP client sends about itself.
type Hello struct {
	Hardware, Length byte // type of its interface, and length of its hardware address in the message
	Broadcast        bool // the client requests broadcast replies
	ID               []byte
}

// Datagram is a datagram to send from one of the server's ports.
type Datagram struct {
	Port uint16
	To   netip.AddrPort
	Body []byte
}

// transfer is a file transfer in progress.
type transfer struct {
	data   []byte
	size   int // block size
	block  int // last block sent; 0 for the options
	client netip.AddrPort
}

// Take handles a datagram received on one of the server's ports, and returns the reply, if there is one.
func (s *Server) Take(port uint16, from netip.AddrPort, body []byte) (*Datagram, error) {
	switch port {
	case DHCPPort:
		return s.dhcp(body)
	case TFTPPort:
		return s.request(from, body), nil
	}
	if x := s.transfers[port]; x != nil && x.client == from {
		return s.acknowledged(port, x, body)
	}
	return nil, nil
}

// A DHCP message, RFC 2131 §2. Offsets in bytes.
const (
	bootRequest = 1
	bootReply   = 2

	dhcpHardware = 1
	dhcpLength   = 2
	dhcpFlags    = 10
	dhcpYour     = 16
	dhcpNext     = 20
	dhcpFile     = 108
	dhcpCookie   = 236
	dhcpOptions  = 240
	dhcpLeast    = 300 // bytes of a message that every client accepts

	fileSize = 128
	cookie   = 0x63825363

	optionPad      = 0
	optionMask     = 1
	optionLease    = 51
	optionType     = 53
	optionServer   = 54
	optionClientID = 61
	optionEnd      = 255

	discover = 1
	offer    = 2
	request  = 3
	ack      = 5
)

func (s *Server) dhcp(q []byte) (*Datagram, error) {
	if len(q) < dhcpOptions || q[0] != bootRequest || binary.BigEndian.Uint32(q[dhcpCookie:]) != cookie {
		return nil, fmt.Errorf("no DHCP request: %d bytes to port %d", len(q), DHCPPort)
	}
	hello := Hello{Hardware: q[dhcpHardware], Length: q[dhcpLength], Broadcast: q[dhcpFlags]>>7 != 0}
	var answer byte
	for o := q[dhcpOptions:]; len(o) > 0 && o[0] != optionEnd; {
		if o[0] == optionPad {
			o = o[1:]
			continue
		}
		if len(o) < 2 || len(o) < 2+int(o[1]) {
			return nil, fmt.Errorf("DHCP option %d is cut", o[0])
		}
		body := o[2:][:o[1]]
		switch o[0] {
		case optionType:
			if len(body) == 1 {
				answer = map[byte]byte{discover: offer, request: ack}[body[0]]
			}
		case optionClientID:
			hello.ID = append([]byte(nil), body...)
		}
		o = o[2+len(body):]
	}
	if answer == 0 {
		return nil, nil
	}
	s.Said = hello
	a := append([]byte(nil), q[:dhcpOptions]...)
	clear(a[12:28]) // addresses
	clear(a[44:dhcpCookie])
	a[0] = bootReply
	put := func(at int, ip netip.Addr) { b := ip.As4(); copy(a[at:], b[:]) }
	put(dhcpYour, s.Client)
	put(dhcpNext, s.Address)
	copy(a[dhcpFile:dhcpFile+fileSize-1], s.Boot)
	server := s.Address.As4()
	option := func(code byte, body ...byte) { a = append(append(a, code, byte(len(body))), body...) }
	option(optionType, answer)
	option(optionServer, server[:]...)
	option(optionLease, 0, 0, 0x0e, 0x10)
	option(optionMask, 255, 255, 255, 0)
	if hello.ID != nil {
		option(optionClientID, hello.ID...) // RFC 6842
	}
	option(175, 0xb0, 1, 1) // iPXE option: there is no proxy DHCP server to wait for
	a = append(a, optionEnd)
	a = append(a, make([]byte, max(0, dhcpLeast-len(a)))...)
	return &Datagram{DHCPPort, netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), clientPort), a}, nil
}

// Operations of TFTP.
const (
	tftpRead  = 1
	tftpData  = 3
	tftpAck   = 4
	tftpError = 5
	tftpOACK  = 6
)

// request starts a transfer from a new port.
func (s *Server) request(from netip.AddrPort, body []byte) *Datagram {
	if len(body) < 4 || binary.BigEndian.Uint16(body) != tftpRead {
		return nil
	}
	words := strings.Split(strings.TrimSuffix(string(body[2:]), "\x00"), "\x00")
	name := strings.TrimPrefix(words[0], "/")
	if s.Asked != nil {
		s.Asked(name)
	}
	data, ok := s.Files[name]
	if !ok {
		return &Datagram{TFTPPort, from, []byte{0, tftpError, 0, 1, 'n', 'o', ' ', 's', 'u', 'c', 'h', ' ', 'f', 'i',
			'l', 'e', 0}}
	}
	if s.transfers == nil {
		s.transfers = map[uint16]*transfer{}
	}
	port := uint16(firstPort + len(s.transfers))
	x := &transfer{data: data, size: 512, client: from}
	s.transfers[port] = x
	options := []byte{0, tftpOACK}
	for i := 2; i+1 < len(words); i += 2 {
		switch n, _ := strconv.Atoi(words[i+1]); strings.ToLower(words[i]) {
		case "blksize":
			x.size = min(max(n, 8), 1428)
			options = fmt.Appendf(options, "blksize\x00%d\x00", x.size)
		case "tsize":
			options = fmt.Appendf(options, "tsize\x00%d\x00", len(data))
		}
	}
	if len(options) > 2 {
		return &Datagram{port, from, options}
	}
	return s.block(port, x, 1)
}

// acknowledged sends the next block, or repeats the last one if it was lost. The block's number has 16 bits.
func (s *Server) acknowledged(port uint16, x *transfer, body []byte) (*Datagram, error) {
	if len(body) < 4 {
		return nil, fmt.Errorf("TFTP of %d bytes", len(body))
	}
	switch op, n := binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:]); {
	case op == tftpError:
		return nil, fmt.Errorf("the client gave up: %q", body[4:])
	case op != tftpAck:
	case n == uint16(x.block):
		return s.block(port, x, x.block+1), nil
	case n == uint16(x.block-1):
		s.Again++
		return s.block(port, x, x.block), nil
	}
	return nil, nil
}

func (s *Server) block(port uint16, x *transfer, n int) *Datagram {
	at := (n - 1) * x.size
	if at > len(x.data) {
		return nil // the last block, which is shorter than others, has arrived
	}
	x.block = n
	s.Blocks++
	head := binary.BigEndian.AppendUint16([]byte{0, tftpData}, uint16(n))
	return &Datagram{port, x.client, append(head, x.data[at:min(at+x.size, len(x.data))]...)}
}
