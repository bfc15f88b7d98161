package boot

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"
)

var (
	ours, theirs = netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	nobody       = netip.MustParseAddrPort("0.0.0.0:68")
)

// discovery is a client's first message, from an interface of the given type with an address of n bytes.
func discovery(kind, n byte, options ...byte) []byte {
	q := make([]byte, dhcpOptions)
	q[0], q[dhcpHardware], q[dhcpLength], q[dhcpFlags] = bootRequest, kind, n, 0x80
	copy(q[4:], []byte{1, 2, 3, 4})
	for i := range n {
		q[28+i] = 0xA0 + i
	}
	copy(q[dhcpCookie:], []byte{0x63, 0x82, 0x53, 0x63})
	return append(append(q, optionPad, optionType, 1, discover), options...)
}

// Over InfiniBand a message has a client identifier instead of the hardware address (RFC 4390 §2.1): the reply repeats
// it.
func TestDHCP(t *testing.T) {
	id, _ := hex.DecodeString("ff00000001000300010002c90300abcde1")
	for _, c := range []struct{ kind, n byte }{{1, 6}, {32, 0}} {
		s := &Server{Address: ours, Client: theirs, Boot: "first"}
		d, err := s.Take(DHCPPort, nobody, discovery(c.kind, c.n,
			append(append([]byte{optionClientID, byte(len(id))}, id...), optionEnd)...))
		if err != nil || d == nil || d.Port != 67 || d.To.String() != "255.255.255.255:68" || len(d.Body) < dhcpLeast {
			t.Fatalf("%+v, %v", d, err)
		}
		a := d.Body
		want := discovery(c.kind, c.n)[:dhcpOptions]
		want[0] = bootReply
		copy(want[16:], []byte{10, 9, 0, 2, 10, 9, 0, 1})
		copy(want[dhcpFile:], "first")
		if !bytes.Equal(a[:dhcpOptions], want) {
			t.Errorf("type %d: % x\nwant % x", c.kind, a[:dhcpOptions], want)
		}
		for _, o := range [][]byte{{optionType, 1, offer}, {optionServer, 4, 10, 9, 0, 1},
			{optionMask, 4, 255, 255, 255, 0}, append([]byte{optionClientID, 17}, id...)} {
			if !bytes.Contains(a[dhcpOptions:], o) {
				t.Errorf("type %d: no option % x in % x", c.kind, o, a[dhcpOptions:])
			}
		}
		if h := s.Said; h.Hardware != c.kind || h.Length != c.n || !h.Broadcast || !bytes.Equal(h.ID, id) {
			t.Errorf("%+v", h)
		}
	}
}

func TestNoDHCP(t *testing.T) {
	good := discovery(1, 6, optionEnd)
	for name, c := range map[string]struct {
		q  []byte
		ok bool
	}{
		"nothing":            {nil, false},
		"cut":                {good[:dhcpOptions-1], false},
		"a reply":            {append([]byte{bootReply}, good[1:]...), false},
		"no cookie":          {append(append(bytes.Clone(good[:dhcpCookie]), 0, 0, 0, 0), good[dhcpOptions:]...), false},
		"option cut":         {discovery(1, 6, optionClientID, 9, 1), false},
		"option without end": {discovery(1, 6, optionClientID), false},
		"a release":          {append(bytes.Clone(good[:dhcpOptions]), optionType, 1, 7), true},
		"no type":            {good[:dhcpOptions], true},
	} {
		s := &Server{Address: ours, Client: theirs}
		if d, err := s.Take(DHCPPort, nobody, c.q); d != nil || (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// A file is sent block by block with the requested options, only to the client that requested it.
func TestTFTP(t *testing.T) {
	for size, asked := range map[int]string{512: "\x00\x01/f\x00octet\x00",
		100: "\x00\x01f\x00octet\x00blksize\x00100\x00tsize\x000\x00"} {
		for _, n := range []int{0, 1, size - 1, size, size + 1, 5 * size} {
			file := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7}, n/7+1)[:n]
			var names []string
			s := &Server{Address: ours, Client: theirs, Files: map[string][]byte{"f": file},
				Asked: func(name string) { names = append(names, name) }}
			from := netip.AddrPortFrom(theirs, 1000)
			d, err := s.Take(TFTPPort, from, []byte(asked))
			if err != nil || d == nil || d.To != from || d.Port < firstPort {
				t.Fatalf("%+v, %v", d, err)
			}
			port := d.Port
			if d.Body[1] == tftpOACK {
				d, _ = s.Take(port, from, []byte{0, tftpAck, 0, 0})
			}
			var got []byte
			for block := byte(1); d != nil; block++ {
				if d.Body[1] != tftpData || d.Body[3] != block || d.Port != port {
					t.Fatalf("block %d: %+v", block, d)
				}
				got = append(got, d.Body[4:]...)
				if x, _ := s.Take(port, netip.AddrPortFrom(theirs, 1001), []byte{0, tftpAck, 0, block}); x != nil {
					t.Fatalf("another client gets %+v", x)
				}
				if x, _ := s.Take(port, from, []byte{0, tftpAck, 0, block - 1}); x == nil ||
					!bytes.Equal(x.Body, d.Body) {
					t.Fatalf("block %d again: %+v", block, x)
				}
				last := len(d.Body) < 4+size
				d, err = s.Take(port, from, []byte{0, tftpAck, 0, block})
				if last != (d == nil) || err != nil {
					t.Fatalf("behind block %d: %+v, %v", block, d, err)
				}
			}
			if !bytes.Equal(got, file) || len(names) != 1 || names[0] != "f" || s.Blocks != n/size+1+s.Again {
				t.Errorf("%d bytes in blocks of %d: %d, %q, %d blocks", n, size, len(got), names, s.Blocks)
			}
			if _, err := s.Take(port, from, []byte("\x00\x05\x00\x00enough\x00")); err == nil {
				t.Error("a client that gives up is no error")
			}
		}
	}
}
