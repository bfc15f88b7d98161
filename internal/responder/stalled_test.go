package responder

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// The polling thread of a responder on AF_XDP is stopped, as if it hung: /healthz, which a kubelet asks for liveness,
// fails until the thread goes on.
func TestStalledLoop(t *testing.T) {
	if programs.Race {
		t.Skip("a thread that is stopped inside the race detector holds its locks, and the others wait for them")
	}
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=afxdp", "stats.listen=127.0.0.1:9469")
	client := w.client(t)
	answer := ""
	says := func(want string) {
		t.Helper()
		if !await.Holds(func() bool {
			r, err := client.Get("http://127.0.0.1:9469/healthz")
			if err != nil {
				answer = err.Error()
				return false
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			answer = fmt.Sprint(r.StatusCode, " ", string(b), err)
			return strings.HasPrefix(answer, want)
		}) {
			t.Errorf("/healthz: %q, want %q", answer, want)
		}
	}
	says("200 ok")

	runtime.LockOSThread() // of ptrace
	defer runtime.UnlockOSThread()
	loop := p.polling(t)
	must.OK(t, unix.PtraceSeize(loop))
	must.OK(t, unix.PtraceInterrupt(loop))
	must.Get(unix.Wait4(loop, nil, unix.WALL, nil))(t)
	says("503 loop 0 is stalled")
	must.OK(t, unix.PtraceDetach(loop))
	says("200 ok")
	p.stop(t, unix.SIGTERM)
}
