package confine

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/needs"
)

const growEnv = "REBOUND_CONFINE_GROW"

// The runtime grows while the process changes its user. With all memory locked and a small limit it must not end for that.
func TestBecomeWithLockedMemory(t *testing.T) {
	needs.Root(t, "changing the user")
	if os.Getenv(growEnv) == "" {
		for range 20 { // a change takes a moment; each must survive
			c := exec.Command("/proc/self/exe", "-test.run=^TestBecomeWithLockedMemory$")
			c.Env = append(os.Environ(), growEnv+"=1")
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%.2000s", err, out)
			}
		}
		return
	}
	small := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		t.Skipf("mlockall: %v", err)
	}
	var keep [][]byte
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if keep = append(keep, make([]byte, 1<<20)); len(keep) > 256 {
					keep = nil
				}
			}
		}
	}()
	for range 10 {
		runtime.Gosched()
	}
	if err := Become(nobody); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-done
}
