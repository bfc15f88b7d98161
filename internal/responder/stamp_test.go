package responder

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// The reflector in a whole responder: sessions, the authenticated mode and TLVs, requested by a kernel socket over
// veth. The driver is auto, which must not choose xdp for these.
func TestReflector(t *testing.T) {
	w := newWire(t)
	key := sha256.Sum256([]byte("a key of this test"))
	file := filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(file, []byte(hex.EncodeToString(key[:])+"\n"), 0o600))
	p := w.start(t, nil, "respond.stamp_mode=stateful", "respond.stamp_auth_ports=863", "respond.stamp_key="+file,
		"respond.stamp_tlvs=true", "respond.stamp_clock_error=3us", "stats.interval=1s")
	if strings.Contains(p.Ready, "driver=xdp") || !p.logs("xdp keeps no STAMP sessions") {
		t.Errorf("%s%s", p.Ready, p.Log)
	}
	sign := func(b []byte) []byte {
		m := hmac.New(sha256.New, key[:])
		m.Write(b)
		return m.Sum(nil)[:16]
	}
	for _, to := range []string{ours4, ours6} {
		ask := func(port int) func(packet []byte, within time.Duration) []byte {
			c := w.dial(t, net.JoinHostPort(to, fmt.Sprint(port)))
			return func(packet []byte, within time.Duration) []byte {
				c.SetDeadline(time.Now().Add(within))
				must.Get(c.Write(packet))(t)
				b := make([]byte, 2000)
				n, _ := c.Read(b)
				return b[:n]
			}
		}
		const patience = 20 * time.Second // a busy machine; one packet is on its way at a time, so none may be lost
		for range 2 {
			send := ask(862)
			for i := range uint32(3) {
				b := make([]byte, 44, 52)
				binary.BigEndian.PutUint32(b, 1000+i)
				g := send(append(b, 0x80, 3, 0, 4, 0, 0, 0, 0), patience)
				if len(g) != 52 || binary.BigEndian.Uint32(g) != i || binary.BigEndian.Uint32(g[24:]) != 1000+i ||
					!bytes.Equal(g[44:], []byte{0, 3, 0, 4, 1, 2, 1, 2}) {
					t.Fatalf("%s: reply %d of a session: %x", to, i, g)
				}
				if e := binary.BigEndian.Uint16(g[12:]); e>>15 != 1 || e&0xff == 0 {
					t.Errorf("error estimate %#x", e)
				}
			}
		}
		send := ask(863)
		b := make([]byte, 96)
		g := send(append(b, sign(b)...), patience)
		if len(g) != 112 || !bytes.Equal(g[96:], sign(g[:96])) {
			t.Errorf("%s: authenticated: %x", to, g)
		}
		if g := send(make([]byte, 112), 300*time.Millisecond); len(g) > 0 {
			t.Errorf("%s: a forgery is answered: %x", to, g)
		}
	}
	if strings.Contains(p.Log.String(), hex.EncodeToString(key[:8])) {
		t.Error("the log has the key in it")
	}
}
