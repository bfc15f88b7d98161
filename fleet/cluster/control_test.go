package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	space          = "/mnt" // files of the cluster, in memory
	controlAddress = "10.77.0.1"
	serviceAddress = "10.79.0.1" // of the service "kubernetes", the first of 10.79.0.0/24
	server         = "https://" + controlAddress + ":6443"
	admin          = space + "/admin.yaml"
	podPrefix      = "10.78." // node n has 10.78.n.0/24
	plugins        = "/usr/lib/cni"
)

// cluster is a control plane and its nodes. Each test has its own addresses, since it runs in the machine's namespaces.
type cluster struct {
	t     *testing.T // of the present step
	ends  *testing.T // of the cluster
	bin   string
	logs  string
	limit time.Duration // of wait
	api   *daemon
	nodes map[string]*node
}

// daemon is a process of the cluster that is expected to run until it is stopped.
type daemon struct {
	name   string
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
	behind bool // it is the child of nsenter
}

// start starts a program, whose output goes to a file.
func (c *cluster) start(name, program string, args ...string) *daemon {
	c.t.Helper()
	d := &daemon{name: name, cmd: exec.Command(program, args...), log: filepath.Join(c.logs, name+".log"),
		ended: make(chan struct{})}
	out := value(os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(c.t)
	defer out.Close()
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"))
	if err := d.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() { d.cmd.Wait(); close(d.ended) }()
	c.ends.Cleanup(func() { // so that another test can start a cluster
		d.cmd.Process.Kill()
		<-d.ended
	})
	return d
}

// pid is the daemon's process as the machine sees it.
func (d *daemon) pid() int {
	if !d.behind {
		return d.cmd.Process.Pid
	}
	var child int
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", d.cmd.Process.Pid))
	fmt.Sscan(string(b), &child)
	return child
}

// stop ends the daemon by a signal.
func (d *daemon) stop(t *testing.T, by syscall.Signal) {
	t.Helper()
	pid := d.pid()
	if pid == 0 {
		t.Fatalf("%s does not run", d.name)
	}
	if err := syscall.Kill(pid, by); err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	<-d.ended
}

// value returns v, and ends the test if err is not nil: b := value(os.ReadFile(name))(t).
func value[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// tail returns the end of a log.
func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// keys writes the server's certificate, which is its own authority, the key of service accounts, the tokens, and the
// administrator's configuration.
func (c *cluster) keys() {
	c.t.Helper()
	key := value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(c.t)
	certificate := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"},
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(controlAddress), net.ParseIP(serviceAddress)}}
	der := value(x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key))(c.t)
	private, accounts := value(x509.MarshalECPrivateKey(key))(c.t), value(rsa.GenerateKey(rand.Reader, 2048))(c.t)
	tokens := "admin,admin,admin,system:masters\n"
	for n := range 3 {
		tokens += fmt.Sprintf("node%[1]d,system:node:node%[1]d,node%[1]d,system:nodes\n", n+1)
	}
	for file, content := range map[string][]byte{
		"server.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"server.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		"accounts.key": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(accounts)}),
		"tokens":     []byte(tokens),
		"admin.yaml": access("admin"),
	} {
		c.write(filepath.Join(space, file), string(content))
	}
}

func (c *cluster) write(file, content string) {
	c.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte(content), 0o600)); err != nil {
		c.t.Fatal(err)
	}
}

// access is a kubeconfig with a token.
func access(token string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %s/server.pem}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server, space, token)
}

// newCluster starts the control plane, and waits until it is ready. manager are further arguments of the controller
// manager.
func newCluster(t *testing.T, manager ...string) *cluster {
	t.Helper()
	if skipped != "" {
		t.Skip(skipped)
	}
	bin, logs := value(programs())(t), value(filepath.Abs("../../out/cluster/"+t.Name()))(t)
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755)); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, ends: t, bin: bin, logs: logs, limit: 5*time.Minute + *away, nodes: map[string]*node{}}
	t.Cleanup(func() { os.RemoveAll(space + "/etcd") })
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.init.Process.Kill()
			n.init.Wait()
		}
	})
	for k, v := range map[string]string{"KUBECONFIG": admin, "HOME": space, "HELM_CACHE_HOME": space + "/helm",
		"HELM_CONFIG_HOME": space + "/helm", "HELM_DATA_HOME": space + "/helm"} {
		t.Setenv(k, v)
	}
	t.Cleanup(func() {
		if t.Failed() {
			files, _ := filepath.Glob(filepath.Join(logs, "*.log"))
			for _, f := range files {
				t.Logf("the end of %s:\n%s", f, tail(f, 15))
			}
		}
	})
	c.keys()
	c.start("etcd", filepath.Join(bin, "etcd"), "--data-dir", space+"/etcd", "--listen-client-urls",
		"http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
		"--unsafe-no-fsync", "--log-level", "warn")
	c.startAPI()
	c.start("controller-manager", filepath.Join(bin, "kube-controller-manager"),
		append([]string{"--kubeconfig", admin, "--service-account-private-key-file", space + "/accounts.key",
			"--root-ca-file", space + "/server.pem", "--use-service-account-credentials", "--leader-elect=false",
			"--node-monitor-period", "1s", "--node-monitor-grace-period", "10s"}, manager...)...)
	c.start("scheduler", filepath.Join(bin, "kube-scheduler"), "--kubeconfig", admin, "--leader-elect=false",
		"--kube-api-qps", "500", "--kube-api-burst", "1000")
	return c
}

// startAPI starts the API server, and waits until it is ready.
func (c *cluster) startAPI() {
	c.t.Helper()
	c.api = c.start("apiserver", filepath.Join(c.bin, "kube-apiserver"), "--etcd-servers", "http://127.0.0.1:2379",
		"--bind-address", controlAddress,
		"--advertise-address", controlAddress, "--secure-port", "6443", "--tls-cert-file", space+"/server.pem",
		"--tls-private-key-file", space+"/server.key",
		"--token-auth-file", space+"/tokens", "--authorization-mode", "Node,RBAC", "--enable-admission-plugins",
		"NodeRestriction",
		"--kubelet-preferred-address-types=InternalIP", "--allow-privileged", "--service-account-issuer",
		"https://kubernetes.default.svc",
		"--service-account-key-file", space+"/accounts.key", "--service-account-signing-key-file",
		space+"/accounts.key",
		"--service-cluster-ip-range", "10.79.0.0/24")
	c.wait("the API server", func() error { return c.try("kubectl", "get", "--raw", "/readyz") })
}

// try runs a program of the cluster, and returns its output as the error if it fails.
func (c *cluster) try(program string, args ...string) error {
	_, err := c.output(program, args...)
	return err
}

func (c *cluster) output(program string, args ...string) (string, error) {
	return outputOf(exec.Command(filepath.Join(c.bin, program), args...))
}

func outputOf(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", cmd, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// kubectl and helm run what has to work, and return what it printed.
func (c *cluster) kubectl(args ...string) string { return c.do("kubectl", args...) }
func (c *cluster) helm(args ...string) string    { return c.do("helm", args...) }

func (c *cluster) do(program string, args ...string) string {
	c.t.Helper()
	return value(c.output(program, args...))(c.t)
}

// pause lets the cluster run for a while.
func (c *cluster) pause(d time.Duration) {
	c.t.Helper()
	end := time.Now().Add(d)
	c.wait("time to measure", func() error {
		if left := time.Until(end); left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// wait waits for a condition, up to the cluster's limit. The error says what is missing.
func (c *cluster) wait(what string, condition func() error) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for {
		err := condition()
		if err == nil {
			took := time.Since(begin)
			c.t.Logf("%s: after %.1f s", what, took.Seconds())
			return took
		}
		if time.Since(begin) > c.limit {
			c.t.Fatalf("%s: not in %v: %v", what, c.limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
