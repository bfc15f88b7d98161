package cluster

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// others is a folder with other programs that measure between nodes: goldpinger.tar, kconmon-ng-agent.tar and
// kconmon-ng-controller.tar are images as docker save writes them, goldpinger and kconmon-ng are charts.
var (
	others = flag.String("others", "", "folder with the images and charts of goldpinger and kconmon-ng, for TestOthers")
	window = flag.Duration("window", time.Minute, "how long TestOthers measures CPU time")
)

// product is a program to compare: its chart, and what it takes to see its results.
type product struct {
	name, chart string
	images      []string // files, and the names they get
	set         string
	// installs a part and returns what to install then; nil for all at once
	begin    func(c *cluster, manifest string) string
	selector string // of the pods that probe
	port     int
	// whether the page of a node's pod has replies of another node's
	result   func(p page, to *node, address string) bool
	settings []setting
}

type setting struct {
	name   string
	set    []string             // arguments of helm
	probes func(p page) float64 // all replies so far
}

// sum adds up the series that contain all these texts.
func (p page) sum(parts ...string) (total float64) {
	for k, v := range p {
		all := true
		for _, s := range parts {
			all = all && strings.Contains(k, s)
		}
		if all {
			total += v
		}
	}
	return total
}

func products() []product {
	ours := func(p page) float64 { return p.sum("rebound_probes_total{") - p.sum("rebound_lost_total{") }
	pings := func(p page) float64 { return p.sum("goldpinger_peers_response_time_s_count{", `call_type="ping"`) }
	checks := func(of string) func(p page) float64 {
		return func(p page) float64 { return p.sum("kconmon_ng_"+of+"_results_total{", `result="success"`) }
	}
	const image = "image.repository=docker.io/library/"
	udp := "config.checkers.tcp.enabled=false,config.checkers.icmp.enabled=false,config.checkers.udp.packets=1,config.checkers.udp.interval="
	return []product{{
		name: "rebound", chart: chart, set: "image.tag=old", selector: "app.kubernetes.io/component=prober", port: 9470,
		result: func(p page, to *node, _ string) bool {
			up, ok := p.to("rebound_target_up", to)
			return ok &&
				up == 1
		},
		settings: []setting{{"as the chart sets it: a probe a second", nil, ours},
			{"ten probes a second", []string{"--set", "prober.rate=10"}, ours}},
	}, {
		name: "goldpinger", images: []string{"goldpinger"}, set: image + "goldpinger,image.tag=latest",
		selector: "app.kubernetes.io/name=goldpinger", port: 8080,
		result: func(p page, _ *node, address string) bool {
			return p.sum("goldpinger_peers_response_time_s_count{", `call_type="ping"`, `pod_ip="`+address+`"`) > 0
		},
		settings: []setting{{"as the chart sets it: every 30 s", nil, pings},
			{"a probe a second", []string{"--set-string", "extraEnv[0].name=REFRESH_INTERVAL,extraEnv[0].value=1"}, pings}},
	}, {
		name: "kconmon-ng", images: []string{"kconmon-ng-agent", "kconmon-ng-controller"},
		set: "agent." + image + "kconmon-ng-agent,agent.image.tag=latest,controller." + image +
			"kconmon-ng-controller,controller.image.tag=latest," +
			"config.checkers.dns.enabled=false", // the cluster has no DNS
		// nor kube-proxy: the agents get the controller's address for the name of its service
		begin: func(c *cluster, manifest string) string {
			c.apply("kconmon-ng", strings.Join(slices.DeleteFunc(strings.Split(manifest, "\n---\n"),
				func(s string) bool { return strings.Contains(s, "kind: DaemonSet") }), "\n---\n"))
			var address string
			c.wait("the controller has an address", func() error {
				address, _ = c.output("kubectl", "get", "pods", "-n", "kconmon-ng", "-l",
					"app.kubernetes.io/component=controller", "-o", "jsonpath={.items[0].status.podIP}")
				if address == "" {
					return errors.New("it has none")
				}
				return nil
			})
			const containers = "      containers:\n        - name: agent\n"
			if !strings.Contains(manifest, containers) {
				c.t.Fatal("the chart's manifest is not as expected")
			}
			return strings.Replace(manifest, containers, "      hostAliases: [{ip: "+address+
				", hostnames: [kconmon-ng-controller]}]\n"+containers, 1)
		},
		selector: "app.kubernetes.io/component=agent", port: 8080,
		result: func(p page, to *node, _ string) bool {
			return p.sum("kconmon_ng_udp_results_total{", `result="success"`, `destination_node="`+to.name+`"`) > 0
		},
		settings: []setting{{"as the chart sets it: TCP, UDP with 5 packets and ICMP every 5 s, without DNS", nil,
			checks("udp")},
			{"UDP, a probe a second", []string{"--set", udp + "1s"}, checks("udp")}, {"UDP, ten probes a second", []string{"--set", udp + "100ms"}, checks("udp")}},
	}}
}

// Other programs that measure between nodes are installed one after the other, with what the chart sets and with
// comparable rates: time to the first results, memory and CPU time of their processes on a node, size of the image.
// `make cluster RUN=TestOthers OTHERS=FOLDER`.
func TestOthers(t *testing.T) {
	if *others == "" {
		t.Skip("needs images and charts of goldpinger and kconmon-ng: -others FOLDER")
	}
	c := newCluster(t)
	nodes := []*node{c.join(1, "a", ""), c.join(2, "b", "")}
	c.ready("node1", "node2")
	for _, p := range products() {
		if p.chart == "" {
			p.chart = filepath.Join(*others, p.name)
		}
		size := compressed(t, filepath.Join(images, "rebound.tar"))
		if len(p.images) > 0 {
			size = 0
		}
		for _, image := range p.images {
			tar := value(os.ReadFile(filepath.Join(*others, image+".tar")))(t)
			size += compressed(t, filepath.Join(*others, image+".tar"))
			c.write(filepath.Join(space, "others", image+".tar"), string(tar)) // nodes have a /tmp of their own
			for _, n := range nodes {
				n.ctr("images", "import", filepath.Join(space, "others", image+".tar"))
			}
		}
		t.Logf("%s: images %.1f MB compressed", p.name, float64(size)/1e6)
		for _, s := range p.settings {
			t.Run(p.name+" "+s.name, func(t *testing.T) {
				c.t = t
				c.compare(p, s, nodes)
			})
			if c.t = t; t.Failed() {
				return
			}
		}
	}
}

// compare installs a product, measures it, and removes it.
func (c *cluster) compare(p product, s setting, nodes []*node) {
	c.t.Helper()
	manifest := c.helm(append([]string{"template", p.name, p.chart, "-n", p.name, "--skip-tests", "--set", p.set},
		s.set...)...)
	c.kubectl("create", "namespace", p.name)
	begin := time.Now()
	if p.begin != nil {
		manifest = p.begin(c, manifest)
	}
	file := c.apply(p.name, manifest)
	addresses := map[*node]string{}
	c.wait(p.name+": results of all nodes", func() error {
		for _, n := range nodes {
			a, err := c.output("kubectl", "get", "pods", "-n", p.name, "-l", p.selector, "--field-selector",
				"spec.nodeName="+n.name, "-o", "jsonpath={.items[0].status.podIP}")
			if err != nil || a == "" {
				return fmt.Errorf("%s has no pod with an address: %v", n.name, err)
			}
			addresses[n] = a
		}
		for _, from := range nodes {
			page, err := pageAt(addresses[from], p.port)
			if err != nil {
				return err
			}
			for _, to := range nodes {
				if from != to && !p.result(page, to, addresses[to]) {
					return fmt.Errorf("%s has no result of %s", from.name, to.name)
				}
			}
		}
		return nil
	})
	first := time.Since(begin)
	probes := func() (all float64) {
		for _, n := range nodes {
			all += s.probes(value(pageAt(addresses[n], p.port))(c.t))
		}
		return all
	}
	c.pause(10 * time.Second) // what it does at its start is over
	cpu, replies, begin := c.processes(p, nodes), probes(), time.Now()
	c.pause(*window)
	later, took := c.processes(p, nodes), time.Since(begin).Seconds()
	c.t.Logf("%s, %s: first results after %.1f s; %.1f replies a second and node", p.name, s.name, first.Seconds(),
		(probes()-replies)/took/float64(len(nodes)))
	for _, n := range nodes {
		var resident, share float64
		var parts []string
		for key, now := range later {
			program, on, _ := strings.Cut(key, " on ")
			if on != n.name {
				continue
			}
			before, ok := cpu[key]
			if !ok {
				c.t.Errorf("%s: %s started within the measurement", p.name, key)
			}
			percent := 100 * (now.seconds - before.seconds) / took
			resident, share = resident+now.resident, share+percent
			parts = append(parts, fmt.Sprintf("%s %.0f MB %.2f %%", program, now.resident, percent))
		}
		if len(parts) == 0 {
			c.t.Errorf("%s has no process on %s", p.name, n.name)
		}
		c.t.Logf("%s, %s: %s: resident %.0f MB, %.2f %% of a core (%s)", p.name, s.name, n.name, resident, share,
			strings.Join(parts, ", "))
	}
	c.kubectl("delete", "-n", p.name, "-f", file, "--wait=true")
	c.kubectl("delete", "namespace", p.name, "--wait=true")
	c.wait("its processes are gone", func() error {
		if left := c.processes(p, nodes); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

func (c *cluster) apply(namespace, manifest string) (file string) {
	c.t.Helper()
	file = filepath.Join(space, namespace+".yaml")
	c.write(file, manifest)
	c.kubectl("apply", "-n", namespace, "-f", file)
	return file
}

type usage struct{ resident, seconds float64 } // MB, CPU time

// processes returns what the processes of a product's pods take, by program and node. Those of a pod are in the node's
// cgroup.
func (c *cluster) processes(p product, nodes []*node) map[string]usage {
	c.t.Helper()
	all := map[string]usage{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		exe, _ := os.Readlink(dir + "/exe")
		program := filepath.Base(exe)
		if !strings.HasPrefix(program, p.name) {
			continue
		}
		groups, _ := os.ReadFile(dir + "/cgroup")
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it ended
		}
		for _, n := range nodes {
			if !bytes.Contains(groups, []byte("/"+os.Getenv(envGroup)+"/"+n.name+"/")) {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(dir))
			_, fields, _ := bytes.Cut(stat, []byte(") "))
			f := strings.Fields(string(fields))
			user, _ := strconv.ParseFloat(f[11], 64)
			system, _ := strconv.ParseFloat(f[12], 64)
			var kb float64
			fmt.Sscan(status(pid, "VmRSS"), &kb)
			key := program + " on " + n.name
			all[key] = usage{all[key].resident + kb*1024/1e6, all[key].seconds + (user+system)/100}
		}
	}
	return all
}

// compressed is the size of a file as a registry would send it.
func compressed(t *testing.T, file string) int64 {
	t.Helper()
	f := value(os.Open(file))(t)
	defer f.Close()
	var size counter
	z := gzip.NewWriter(&size)
	value(io.Copy(z, f))(t)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return int64(size)
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }
