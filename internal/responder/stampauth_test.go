package responder

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// The authenticated mode with an independent sender that shares no layout and no HMAC with our code (Debian: python3):
// it accepts our replies as authentic, and gets none for a packet with a changed bit in any field, or for a truncated
// one.
func TestSTAMPAuthenticatedByPython(t *testing.T) {
	if err := exec.Command("python3", "-c", "import hashlib, hmac, socket, struct").Run(); err != nil {
		t.Skip("needs python3 (package python3)")
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	key, file := hex.EncodeToString(raw), filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(file, []byte(key), 0o600))
	w := newWire(t)
	w.start(t, nil, "nic.driver=afxdp", "respond.stamp_mode=stateful", "respond.stamp_auth_ports=863", "respond.stamp_key="+file)
	for _, to := range []string{ours4, ours6} {
		var out []byte
		w.there.do(t, func() { out, _ = exec.Command("python3", "testdata/stamp_auth.py", to, "863", key).CombinedOutput() })
		var want strings.Builder
		for _, n := range []string{"0", "1"} { // the session's own numbers: an unauthenticated packet does not consume one
			want.WriteString("number " + n + " sender 10" + n + " time True error 8305 ttl 64 zeros True order True HMAC True changed-HMAC False\n")
		}
		if string(out) != want.String() {
			t.Errorf("%s: python reads\n%swant\n%s", to, out, want.String())
		}
	}
}
