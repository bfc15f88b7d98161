package cluster

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Where the kubelet's CPU manager is static, a responder with one whole CPU has that CPU for itself, and polls there.
func TestWholeCPU(t *testing.T) {
	c := newCluster(t)
	n := c.join(1, "a", "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n")
	c.ready("node1")
	c.helm("install", release, chart, "-n", release, "--create-namespace", "--wait", "--set",
		"image.tag=old,prober.enabled=false,responder.driver=afxdp,responder.device=eth0,responder.addresses={10.77.0.99/24},"+
			"responder.resources.requests.cpu=1,responder.resources.limits.cpu=1,responder.resources.requests.memory=256Mi")
	c.wait("the responder has CPU 1", func() error {
		pid := n.process("/usr/bin/rebound-responder")
		if pid == 0 {
			return errors.New("it does not run")
		}
		if cpus := status(pid, "Cpus_allowed_list"); cpus != "1" {
			return errors.New("it may use " + cpus)
		}
		return nil
	})
	out := c.kubectl("logs", "-n", release, "daemonset/"+release+"-responder")
	if want := "every core that this process can have polls"; !strings.Contains(out, want) {
		t.Errorf("the responder should log %q:\n%s", want, out)
	}
	if out, err := exec.Command("ping", "-c", "20", "-i", "0.1", "-W", "10", "-q",
		"10.77.0.99").CombinedOutput(); err != nil || !strings.Contains(string(out), "20 received") {
		t.Errorf("%v: %s", err, out)
	}
}
