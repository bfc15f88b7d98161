package confine

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const againEnv = "REBOUND_CONFINE_AGAIN"

// again returns a process that runs a test again as a role, which role returns there.
func again(t *testing.T, as string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), againEnv+"="+as)
	return c
}

func role() string { return os.Getenv(againEnv) }

// succeeds fails the test if the test fails as a role.
func succeeds(t *testing.T, as string) {
	t.Helper()
	if out, err := again(t, as).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%.2000s", as, err, out)
	}
}

// The runtime grows while the process changes its user. With all memory locked and a small limit, the process must
// survive this.
func TestBecomeWithLockedMemory(t *testing.T) {
	needs.Root(t, "changing the user")
	if role() == "" {
		for range 20 { // a change takes a moment; each must survive
			succeeds(t, "child")
		}
		return
	}
	small := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small))
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
	must.OK(t, Become(nobody))
	close(stop)
	<-done
	// Another change of the user would not keep the capabilities.
	must.Equal(t, must.Get(unix.PrctlRetInt(unix.PR_GET_KEEPCAPS, 0, 0, 0, 0))(t), 0, "PR_GET_KEEPCAPS is %d")
}

// With a limit on locked memory, changing the user needs CAP_SETPCAP: Cannot returns in advance the error of Become.
func TestCannotWithLimitedMemory(t *testing.T) {
	needs.Root(t, "changing the user")
	switch role() {
	case "":
		succeeds(t, "CAP_SETPCAP kept")
		succeeds(t, "CAP_SETPCAP given up")
		return
	case "CAP_SETPCAP given up":
		giveUp(unix.CAP_SETPCAP)
	}
	small := unix.Rlimit{Cur: 8 << 20, Max: 8 << 20}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small))
	giveUp(unix.CAP_SYS_RESOURCE)
	before := nobody.Cannot()
	err := Become(nobody)
	if (before == nil) != (err == nil) || (err == nil) != (role() == "CAP_SETPCAP kept") || err != nil &&
		!strings.Contains(before.Error(), "CAP_SETPCAP") {
		t.Errorf("Cannot says %v, Become %v", before, err)
	}
}
