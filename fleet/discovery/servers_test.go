package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// serving is a program that ends with the test.
type serving struct {
	t   *testing.T
	cmd *exec.Cmd
	log locked
}

func serve(t *testing.T, cmd *exec.Cmd) *serving {
	t.Helper()
	s := &serving{t: t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

func (s *serving) kill() {
	if s.cmd.ProcessState == nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
}

// until waits for a condition.
func (s *serving) until(what string, condition func() error) {
	s.t.Helper()
	var err error
	for range 1200 {
		if err = condition(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Fatalf("%s: %v\n%s", what, err, s.log.String())
}

// free returns ports of 127.0.0.1 on which nothing listens now.
func free(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		all = append(all, port)
	}
	return all
}

// consul returns a Consul: the one that make servers built, or an installed one.
func consul(t *testing.T) string {
	t.Helper()
	const built = "../../.cache/servers/consul"
	if _, err := os.Stat(built); err == nil {
		path, err := filepath.Abs(built)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	path, err := exec.LookPath("consul")
	if err != nil {
		t.Skip("needs consul, which is neither installed nor built in .cache/servers (make servers builds it, which takes minutes)")
	}
	return path
}

// Services of a real Consul become members; the file follows those that come and go, and stays while Consul is away.
func TestConsul(t *testing.T) {
	program, ports := consul(t), free(t, 5)
	url := "http://127.0.0.1:" + ports[0]
	dir := t.TempDir()
	start := func() *serving {
		t.Helper()
		s := serve(t, exec.Command(program, "agent", "-server", "-bootstrap-expect", "1", "-data-dir", dir, "-node",
			"consul1", "-bind", "127.0.0.1", "-client", "127.0.0.1",
			"-http-port", ports[0], "-server-port", ports[1], "-serf-lan-port", ports[2], "-serf-wan-port", ports[3],
			"-dns-port", ports[4], "-grpc-port", "-1",
			"-hcl", "leave_on_terminate = false disable_update_check = true performance { raft_multiplier = 1 }"))
		s.until("Consul has a leader", func() error {
			r, err := http.Get(url + "/v1/status/leader")
			if err != nil {
				return err
			}
			defer r.Body.Close()
			var b bytes.Buffer
			b.ReadFrom(r.Body)
			if !strings.Contains(b.String(), ":") {
				return fmt.Errorf("it answers %q", b.String())
			}
			return nil
		})
		return s
	}
	server := start()
	put := func(path, body string) {
		t.Helper()
		server.until(path, func() error { // it refuses until it has settled
			r, err := http.NewRequest(http.MethodPut, url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			a.Body.Close()
			if a.StatusCode != http.StatusOK {
				return errors.New(a.Status)
			}
			return nil
		})
	}
	register := func(id, address, zone string) {
		t.Helper()
		put("/v1/agent/service/register",
			fmt.Sprintf(`{"ID": %q, "Name": "rebound", "Address": %q, "Port": 7, "Tags": ["prod"], "Meta": {"zone": %q}}`, id, address, zone))
	}
	register("h1", "10.0.0.1", "a")
	register("h2", "10.0.0.2", "b")
	put("/v1/agent/service/register", `{"ID": "web", "Name": "web", "Address": "10.0.9.9", "Port": 80}`)
	d := discover(t, fmt.Sprintf(`
- job_name: fleet
  params: {proto: [udp]}
  consul_sd_configs: [{server: '127.0.0.1:%s', services: [rebound], tags: [prod], refresh_interval: 1s}]
  relabel_configs:
  - {source_labels: [__meta_consul_service_metadata_zone], target_label: zone}
  - {source_labels: [__meta_consul_service_id], target_label: node}
`, ports[0]))
	h1, h2, h3 := "10.0.0.1:7 __param_proto=udp node=h1 zone=a", "10.0.0.2:7 __param_proto=udp node=h2 zone=b",
		"10.0.0.3:7 __param_proto=udp node=h3 zone=a"
	d.until(h1, h2)
	register("h3", "10.0.0.3", "a")
	d.until(h1, h2, h3)
	put("/v1/agent/service/deregister/h2", "")
	d.until(h1, h3)

	server.kill()
	server.until("the log says that Consul is away", func() error {
		if !strings.Contains(d.log.String(), "127.0.0.1:"+ports[0]) {
			return errors.New(d.log.String())
		}
		return nil
	})
	d.until(h1, h3)
	server = start() // it knows its services from its folder
	register("h2", "10.0.0.2", "b")
	d.until(h1, h2, h3)
}

// The records of a real DNS server become members. Prometheus' discovery asks the servers of /etc/resolv.conf and
// nothing else, so both run in a network and mount namespace.
func TestDNS(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace with another resolv.conf")
	}
	for _, p := range []string{"dnsmasq", "unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s, which is not installed (apt-get install dnsmasq-base util-linux iproute2)", p)
		}
	}
	dir := t.TempDir()
	d := &discovering{t: t, conf: filepath.Join(dir, "p.yml"), out: filepath.Join(dir, "fleet.json")}
	d.write(filepath.Join(dir, "resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
	d.write(d.conf, `
- job_name: addresses
  dns_sd_configs: [{names: [hosts.example], type: A, port: 7, refresh_interval: 1s}]
- job_name: services
  dns_sd_configs: [{names: [_echo._udp.example], type: SRV, refresh_interval: 1s}]
  relabel_configs: [{source_labels: [__meta_dns_srv_record_target], regex: '([^.]*)[.].*', target_label: node}]
`)
	program := filepath.Join(dir, "rebound-discover")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	space := serve(t, exec.Command("unshare", "-n", "-m", "--kill-child", "sh", "-euc",
		`ip link set lo up; mount --bind "$1" /etc/resolv.conf; echo ready; exec sleep infinity`, "sh",
		filepath.Join(dir, "resolv.conf")))
	space.until("the namespaces", func() error {
		if space.log.String() != "ready\n" {
			return errors.New(space.log.String())
		}
		return nil
	})
	inside := func(args ...string) *serving {
		t.Helper()
		return serve(t, exec.Command("nsenter", append([]string{"-t", fmt.Sprint(space.cmd.Process.Pid), "-n", "-m",
			"--"}, args...)...))
	}
	dns := func(records ...string) *serving {
		t.Helper()
		return inside(append([]string{"dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv",
			"--no-hosts", "--user=root", "--pid-file=", "--log-facility=-",
			"--listen-address=127.0.0.1", "--bind-interfaces", "--local=/example/"}, records...)...)
	}
	const first, second = "--host-record=hosts.example,10.0.0.1", "--host-record=hosts.example,10.0.0.2"
	server := dns(first, "--srv-host=_echo._udp.example,s1.example,700")
	discovery := inside(program, "-config", d.conf, "-out", d.out)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(discovery.log.String())
		}
	})
	d.until("10.0.0.1:7", "s1.example:700 node=s1")
	says := func(what string) {
		t.Helper()
		discovery.until("the log says "+what, func() error {
			if !strings.Contains(discovery.log.String(), what) {
				return errors.New("it does not")
			}
			return nil
		})
	}
	server.kill() // what was there stays
	says("Error refreshing DNS targets")
	d.until("10.0.0.1:7", "s1.example:700 node=s1")
	server = dns(first, second, "--srv-host=_echo._udp.example,s1.example,700",
		"--srv-host=_echo._udp.example,s2.example,701")
	d.until("10.0.0.1:7", "10.0.0.2:7", "s1.example:700 node=s1", "s2.example:701 node=s2")
	server.kill()
	dns(second, "--srv-host=_echo._udp.example,s2.example,701")
	d.until("10.0.0.2:7", "s2.example:701 node=s2")

	discovery.cmd.Process.Signal(syscall.SIGTERM)
	if err := discovery.cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// Instances of a server with the API of EC2 (moto_server, of the Python package moto) become members, and those that
// are terminated are not any more.
func TestEC2(t *testing.T) {
	program, err := exec.LookPath("moto_server")
	if err != nil {
		t.Skip("needs moto_server, which is not installed (pip install 'moto[ec2,server]')")
	}
	t.Setenv("AWS_CA_BUNDLE", "") // with it, Prometheus' discovery cannot make its client
	port := free(t, 1)[0]
	url := "http://127.0.0.1:" + port
	server := serve(t, exec.Command(program, "-H", "127.0.0.1", "-p", port))
	client := ec2.New(ec2.Options{Region: "eu-west-1", BaseEndpoint: &url,
		Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")})
	run := func(name, zone string) (id, address string) {
		t.Helper()
		server.until("an instance", func() error {
			image := "ami-12c6146b"
			out, err := client.RunInstances(context.Background(),
				&ec2.RunInstancesInput{ImageId: &image, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
					Placement: &types.Placement{AvailabilityZone: aws.String(zone)},
					TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
						Tags: []types.Tag{{Key: aws.String("Name"), Value: aws.String(name)},
							{Key: aws.String("rack"), Value: aws.String("r1")}}}}})
			if err != nil {
				return err
			}
			id, address = *out.Instances[0].InstanceId, *out.Instances[0].PrivateIpAddress
			return nil
		})
		return id, address
	}
	_, a1 := run("h1", "eu-west-1a")
	d := discover(t, fmt.Sprintf(`
- job_name: fleet
  ec2_sd_configs: [{region: eu-west-1, endpoint: '%s', access_key: x, secret_key: x, port: 7, refresh_interval: 1s, filters: [{name: instance-state-name, values: [running]}]}]
  relabel_configs:
  - {source_labels: [__meta_ec2_tag_Name], target_label: node}
  - {source_labels: [__meta_ec2_tag_rack], target_label: rack}
  - {source_labels: [__meta_ec2_availability_zone], target_label: zone}
`, url))
	h1 := a1 + ":7 node=h1 rack=r1 zone=eu-west-1a"
	d.until(h1)
	id, a2 := run("h2", "eu-west-1b")
	h2 := a2 + ":7 node=h2 rack=r1 zone=eu-west-1b"
	d.until(slices.Sorted(slices.Values([]string{h1, h2}))...)
	if _, err := client.TerminateInstances(context.Background(),
		&ec2.TerminateInstancesInput{InstanceIds: []string{id}}); err != nil {
		t.Fatal(err)
	}
	d.until(h1)
	server.kill()
	server.until("the log says that the server is away", func() error {
		if !strings.Contains(d.log.String(), "127.0.0.1:"+port) {
			return errors.New(d.log.String())
		}
		return nil
	})
	d.until(h1)
}
