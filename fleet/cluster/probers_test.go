package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is the metrics of a node's responder or prober, by series.
type page map[string]float64

func (n *node) page(port int) (page, error) { return pageAt(n.address, port) }

func pageAt(address string, port int) (page, error) {
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get(fmt.Sprintf("http://%s:%d/metrics", address, port))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := page{}
	for line := range strings.Lines(string(b)) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			p[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64)
		}
	}
	return p, nil
}

// to returns the value of a target's series.
func (p page) to(name string, n *node) (float64, bool) {
	sum, found := 0.0, false
	for k, v := range p {
		if strings.HasPrefix(k, name+"{") && strings.Contains(k, `node="`+n.name+`"`) {
			sum, found = sum+v, true
		}
	}
	return sum, found
}

// each calls f for every pair of nodes with the metrics of the first one's prober.
func each(nodes []*node, f func(p page, from, to *node) error) error {
	for _, from := range nodes {
		p, err := from.page(9470)
		if err != nil {
			return err
		}
		for _, to := range nodes {
			if from != to {
				if err := f(p, from, to); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// matrix waits until every node has replies from every other one and from no others.
func (c *cluster) matrix(nodes ...*node) {
	c.t.Helper()
	c.wait("matrix", func() error {
		return each(nodes, func(p page, from, to *node) error {
			if up, ok := p.to("rebound_target_up", to); !ok || up != 1 {
				return fmt.Errorf("%s to %s: up %v (%v)", from.name, to.name, up, ok)
			}
			for k := range p {
				if strings.HasPrefix(k, "rebound_target_up{") &&
					!slices.ContainsFunc(nodes, func(n *node) bool {
						return strings.Contains(k, `node="`+n.name+`"`)
					}) {
					return fmt.Errorf("%s has the target %s", from.name, k)
				}
			}
			return nil
		})
	})
}

// probed waits until every pair of nodes has sent that many more probes.
func (c *cluster) probed(more float64, nodes ...*node) {
	c.t.Helper()
	begin := map[string]float64{}
	first := true
	c.wait(fmt.Sprintf("%v probes on each path", more), func() error {
		err := each(nodes, func(p page, from, to *node) error {
			n, ok := p.to("rebound_probes_total", to)
			path := from.name + " " + to.name
			if first {
				begin[path] = n
			}
			if !ok || n-begin[path] < more {
				if first {
					return nil
				}
				return fmt.Errorf("%s: %v of %v", path, n-begin[path], more)
			}
			return nil
		})
		if first && err == nil {
			first = false
			return errors.New("begun")
		}
		return err
	})
}

// watched is the state of the probers' logs, which have a line for each target that goes down.
type watched struct {
	*cluster
	nodes []*node
	what  string
	lost  map[string]float64
	since time.Time
}

func (c *cluster) watch(what string, nodes []*node) *watched {
	c.t.Helper()
	// at ten a second: a probe of an earlier outage counts as lost two time-outs after it was sent
	c.probed(40, nodes...)
	w := &watched{cluster: c, nodes: nodes, what: what, since: time.Now()}
	w.lost = w.count()
	return w
}

func (w *watched) count() map[string]float64 {
	w.t.Helper()
	lost := map[string]float64{}
	if err := each(w.nodes, func(p page, from, to *node) error {
		lost[from.name+" "+to.name], _ = p.to("rebound_lost_total", to)
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return lost
}

// downs returns the lines of a node's prober about targets that are down, since the start.
func (w *watched) downs(n *node) (lines []string) {
	w.t.Helper()
	out := w.kubectl("logs", "-n", release, w.pod(n, "prober"), "--since-time", w.since.UTC().Format(time.RFC3339))
	for line := range strings.Lines(out) {
		_, text, _ := strings.Cut(line, "time=")
		text, _, _ = strings.Cut(text, " ")
		if at, err := time.Parse(time.RFC3339, text); strings.Contains(line, "target is down") && err == nil &&
			at.After(w.since) {
			lines = append(lines, line)
		}
	}
	return lines
}

// quiet checks that no target was down.
func (w *watched) quiet() {
	w.t.Helper()
	for _, n := range w.nodes {
		if lines := w.downs(n); len(lines) > 0 {
			w.t.Errorf("%s: the prober of %s raised a false alarm:\n%s", w.what, n.name, strings.Join(lines, ""))
		}
	}
	for path, n := range w.count() {
		if n != w.lost[path] {
			w.t.Logf("%s: %s lost %v probes", w.what, path, n-w.lost[path])
		}
	}
}
