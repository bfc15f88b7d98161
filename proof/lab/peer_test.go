package lab

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/sim"
)

// peer is the host at the other end of the wire: it answers ARP, ICMP echo and UDP, and checks every checksum that it
// receives. It is small, and shares no code with the code under test.
type peer struct {
	mac  [6]byte
	ip   [4]byte
	wire sim.Wire

	mu      sync.Mutex
	icmp    int
	udp     int
	wrong   []string // broken frames
	stopped chan struct{}
	stop    chan struct{}
}

func newPeer(w sim.Wire) *peer {
	p := &peer{mac: [6]byte{2, 0, 0, 0, 0xee, 1}, ip: [4]byte{10, 9, 0, 1}, wire: w,
		stop: make(chan struct{}), stopped: make(chan struct{})}
	go p.run()
	return p
}

func (p *peer) close() {
	close(p.stop)
	<-p.stopped
}

func (p *peer) run() {
	defer close(p.stopped)
	start := time.Now()
	for idle := 0; ; {
		select {
		case <-p.stop:
			return
		default:
		}
		f := p.wire.Recv(time.Since(start))
		if f == nil {
			if idle++; idle < 200 {
				nap()
			} else {
				time.Sleep(time.Millisecond)
			}
			continue
		}
		idle = 0
		p.mu.Lock()
		reply, err := p.answer(f)
		if err != nil && len(p.wrong) < 10 {
			p.wrong = append(p.wrong, fmt.Sprintf("%v: %x", err, f[:min(len(f), 80)]))
		}
		p.mu.Unlock()
		if reply {
			p.wire.Send(time.Since(start), f)
		}
	}
}

// nap is shorter than time.Sleep, which takes at least a millisecond when everything else waits.
func nap() { unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil) }

func (p *peer) answer(f []byte) (reply bool, err error) {
	if len(f) < 60 {
		return false, fmt.Errorf("frame of %d bytes", len(f))
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0806:
		if binary.BigEndian.Uint16(f[20:]) != 1 || [4]byte(f[38:]) != p.ip {
			return false, nil
		}
		f[21] = 2
		copy(f[0:6], f[6:12])
		copy(f[6:12], p.mac[:])
		copy(f[32:42], f[22:32])
		copy(f[22:28], p.mac[:])
		copy(f[28:32], p.ip[:])
		return true, nil
	case 0x0800:
	default:
		return false, nil
	}
	ip := f[14:]
	hl, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case ip[0]>>4 != 4 || hl < 20 || total < hl || total > len(ip):
		return false, fmt.Errorf("IP header length %d, total %d", hl, total)
	case ones(ip[:hl], 0) != 0xffff:
		return false, fmt.Errorf("IP checksum")
	case [4]byte(ip[16:]) != p.ip:
		return false, nil
	case binary.BigEndian.Uint16(ip[6:])&0x3fff != 0:
		return false, fmt.Errorf("fragment")
	}
	l4 := ip[hl:total]
	switch ip[9] {
	case 1:
		if ones(l4, 0) != 0xffff {
			return false, fmt.Errorf("ICMP checksum")
		}
		if l4[0] != 8 {
			return false, nil
		}
		p.icmp++
		l4[0], l4[2], l4[3] = 0, 0, 0
		binary.BigEndian.PutUint16(l4[2:], ^uint16(ones(l4, 0)))
	case 17:
		if len(l4) < 8 || int(binary.BigEndian.Uint16(l4[4:])) != len(l4) {
			return false, fmt.Errorf("UDP length")
		}
		if ones(l4, ones(ip[12:20], uint32(17+len(l4)))) != 0xffff {
			return false, fmt.Errorf("UDP checksum")
		}
		p.udp++
		port := [2]byte(l4[0:2])
		copy(l4[0:2], l4[2:4])
		copy(l4[2:4], port[:])
	default:
		return false, nil
	}
	copy(f[0:6], f[6:12])
	copy(f[6:12], p.mac[:])
	src := [4]byte(ip[12:16])
	copy(ip[12:16], p.ip[:])
	copy(ip[16:20], src[:])
	return true, nil
}

func ones(b []byte, s uint32) uint32 {
	for i := range b {
		s += uint32(b[i]) << (8 * (1 - i&1))
		s = s>>16 + s&0xffff
	}
	return s>>16 + s&0xffff
}
