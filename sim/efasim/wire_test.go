package efasim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

func TestFrame(t *testing.T) {
	f := frame{typ: typeWrite, flags: flagImm, status: 9, src: gidOf([6]byte{2, 0, 0, 0, 0, 1}),
		dst:   gidOf([6]byte{2, 0, 0, 0, 0, 2}),
		srcQP: 0x102, dstQP: 0x304, qkey: 0x11111111, imm: 0xa1b2c3d4, epoch: 5, seq: 6, raddr: 0x1122334455667788,
		rkey: 7, length: 8,
		payload: []byte("12345678")}
	b := f.marshal()
	want := "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x88\xb5" +
		"\x01\x03\x01\x09" +
		"\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xfe\x00\x00\x01" +
		"\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xfe\x00\x00\x02" +
		"\x01\x02\x03\x04" + "\x11\x11\x11\x11" + "\xa1\xb2\xc3\xd4" + "\x00\x00\x00\x05\x00\x00\x00\x06" +
		"\x11\x22\x33\x44\x55\x66\x77\x88" + "\x00\x00\x00\x07\x00\x00\x00\x08" + "\x00\x00\x00\x08" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "12345678"
	if string(b) != want {
		t.Errorf("frame\n%x, want\n%x", b, want)
	}
	if g, err := parseFrame(append(b, 0, 0, 0)); err != nil || string(g.marshal()) != want { // padded
		t.Errorf("%+v, %v", g, err)
	}
	for _, c := range []struct {
		at   int
		v    byte
		text string
	}{
		{12, 8, "EtherType 0x08b5"}, {14, 2, "version 2"}, {15, 0, "type 0"}, {15, 8, "type 8"}, {14 + 75, 9, "payload of 9 bytes"}, {14 + 72, 0x80, "payload of 2147483656"},
	} {
		bad := append([]byte(nil), b...)
		bad[c.at] = c.v
		check.Fails(t, fmt.Sprintf("byte %d = %#x", c.at, c.v), check.Err(parseFrame(bad)), nil, c.text)
	}
	check.Fails(t, "a short frame is taken", check.Err(parseFrame(b[:etherSize+headSize-1])), nil)
}

func TestDissector(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark on this host (package tshark)")
	}
	script := must.Get(filepath.Abs("efa-wire.lua"))(t)
	must.Get(os.Stat(script))(t) // tshark's input is the test's, too
	name := filepath.Join(t.TempDir(), "efa.pcap")
	file := must.Get(os.Create(name))(t)
	x, y := pair(t, Options{InOrder: true}, Options{InOrder: true}, sim.Impairment{})
	a, b := sim.Pair()
	c := must.Get(sim.NewCapture(a, file, sim.LinkEthernet))(t)
	x.Port.Connect(c)
	y.Port.Connect(b)
	q, r := x.qpair(typeSRD, 64, x.completions(16, nil)).ready(), y.qpair(typeSRD, 64, y.completions(16, nil)).ready()
	ah := x.handle(y.m.gid)
	y.handle(x.m.gid)
	r.offer(256, 0)
	q.push(q.inline(0, r.num, ah, "hello"))
	q.post(q.rdma(opWrite, 1, r.num, ah, 300, r.mem.IOVA, r.rkey))
	must.OK(t, c.Err())
	file.Close()
	out, err := exec.Command(tshark, "-X", "lua_script:"+script, "-r", name, "-T", "fields", "-e", "efasim.type", "-e",
		"efasim.src", "-e", "efasim.paylen",
		"-e", "efasim.status", "-e", "_ws.col.Info").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, out)
	}
	check.Contains(t, string(out),
		"2\tfe80::ff:fe00:1\t5\t0\tSRD send", "3\tfe80::ff:fe00:1\t300\t0\tRDMA write",
		"6\tfe80::ff:fe00:2\t0\t0\tAcknowledgement")
}
