package targets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// Sources are the sources of targets. One goroutine uses it.
type Sources struct {
	Defaults
	Static  []Target
	List    string   // a file in the format of parseList; empty for none
	FileSD  []string // files in the format of parseFileSD; the last part of a path may have a *
	DNS     []Query
	Refresh time.Duration // interval of DNS queries

	Resolver Resolver // nil for the system's

	lists map[string]*listed
	names map[string]*listed
}

// Resolver is the part of net.Resolver that is used.
type Resolver interface {
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, addrs []*net.SRV, err error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Query is a name whose records are targets.
type Query struct {
	Name  string
	Type  string // "SRV", "A" or "AAAA"
	Proto probe.Proto
	Port  uint16 // for A and AAAA; 0 for the protocol's default
}

// listed is the last good content of a source.
type listed struct {
	stamp   string // size, time and inode of a file
	asked   time.Time
	targets []Target
	failed  string // the last error that was reported
}

// Failure is a source that could not be read. Its last content is kept.
type Failure struct {
	Source string
	Err    error
	New    bool // it has not been reported before
	File   bool // it is a file
}

// ParseQuery parses [PROTO:]NAME.
func (d Defaults) ParseQuery(text, kind string, port uint16) (Query, error) {
	q := Query{Name: text, Type: kind, Proto: d.Proto, Port: port}
	if name, rest, ok := strings.Cut(text, ":"); ok {
		p, err := probe.ParseProto(name)
		if err != nil {
			return q, fmt.Errorf("%q: %w", text, err)
		}
		q.Proto, q.Name = p, rest
	}
	if !hostname.MatchString(q.Name) || len(q.Name) > 253 {
		return q, fmt.Errorf("%q is not a DNS name like _stamp._udp.example.org", q.Name)
	}
	return q, nil
}

// Read reads all sources that may have changed, or all sources if force is set, and returns the targets, by name, and
// the sources that failed. A file is read again if its size, time or inode has changed.
func (s *Sources) Read(ctx context.Context, force bool, now time.Time) (all []Target, failures []Failure) {
	if s.lists == nil {
		s.lists, s.names = map[string]*listed{}, map[string]*listed{}
	}
	all = append(all, s.Static...)
	take := func(from map[string]*listed, source string, isDNS bool, err error) {
		l := from[source]
		if err == nil {
			l.failed = ""
		} else {
			failures = append(failures, Failure{source, err, l.failed != err.Error(), !isDNS})
			l.failed = err.Error()
		}
		all = append(all, l.targets...)
	}
	seen := map[string]bool{}
	read := func(file string, parse func(string, []byte) ([]Target, error)) {
		l := s.lists[file]
		if l == nil {
			l = &listed{}
			s.lists[file] = l
		}
		seen[file] = true
		take(s.lists, file, false, l.load(file, force, parse))
	}
	if s.List != "" {
		read(s.List, s.parseList)
	}
	for _, pattern := range s.FileSD {
		files, err := filepath.Glob(pattern)
		if err == nil && len(files) == 0 {
			if !strings.ContainsAny(pattern, "*?[") {
				files = []string{pattern} // a missing file is reported
			}
		}
		slices.Sort(files)
		for _, f := range files {
			read(f, s.parseFileSD)
		}
	}
	for f := range s.lists { // a removed file removes its targets, as in Prometheus
		if !seen[f] {
			delete(s.lists, f)
		}
	}
	for _, q := range s.DNS {
		key := q.Type + " " + q.Name + " " + q.Proto.String()
		l := s.names[key]
		if l == nil {
			l = &listed{}
			s.names[key] = l
		}
		var err error
		if force || now.Sub(l.asked) >= s.Refresh || now.Before(l.asked) {
			l.asked = now
			var found []Target
			if found, err = s.resolve(ctx, q); err == nil {
				l.targets = found
			}
		} else if l.failed != "" {
			err = errors.New(l.failed)
		}
		take(s.names, key, true, err)
	}
	return distinct(all), failures
}

// distinct sorts the targets and keeps the first with each name, adding the labels of the others: a target of the
// command line that is also in a file has the file's labels.
func distinct(all []Target) (out []Target) {
	slices.SortStableFunc(all, func(a, b Target) int { return strings.Compare(a.Name(), b.Name()) })
	for _, t := range all {
		n := len(out) - 1
		switch {
		case n < 0 || out[n].Name() != t.Name():
			out = append(out, t)
		case len(t.Labels) > 0:
			labels := maps.Clone(t.Labels)
			maps.Copy(labels, out[n].Labels)
			out[n].Labels = labels
		}
	}
	return out
}

// load reads a file of targets if its size, modification time or inode changed, or if force is set. After an error it
// keeps the targets of before, and returns the error again until the file changes.
func (l *listed) load(file string, force bool, parse func(string, []byte) ([]Target, error)) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", file)
	}
	stamp := fmt.Sprint(info.Size(), info.ModTime().UnixNano())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprint(" ", st.Ino)
	}
	if stamp == l.stamp && !force {
		if l.failed != "" {
			return errors.New(l.failed)
		}
		return nil
	}
	f, err := atomicfile.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxFile {
		return fmt.Errorf("%s: longer than %d MiB", file, maxFile>>20)
	}
	l.stamp = stamp
	found, err := parse(file, text)
	if err == nil {
		l.targets = found
	}
	return err
}

// resolve resolves a name, as Prometheus' dns_sd does.
func (s *Sources) resolve(ctx context.Context, q Query) (out []Target, err error) {
	r := s.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if q.Type == "SRV" {
		_, records, err := r.LookupSRV(ctx, "", "", q.Name)
		if err != nil {
			return nil, fmt.Errorf("DNS: %w", err)
		}
		for _, rec := range records {
			// "." means that there is no such service (RFC 2782)
			if host := strings.TrimSuffix(rec.Target, "."); host != "" {
				out = append(out, s.complete(Target{Proto: q.Proto, Host: host, Port: rec.Port, Probes: s.Probes}))
			}
		}
		return out, nil
	}
	network := "ip4"
	if q.Type == "AAAA" {
		network = "ip6"
	}
	addrs, err := r.LookupNetIP(ctx, network, q.Name)
	if err != nil {
		return nil, fmt.Errorf("DNS: %w", err)
	}
	for _, a := range addrs {
		out = append(out, s.complete(Target{Proto: q.Proto, Host: a.Unmap().String(), Port: q.Port, Probes: s.Probes}))
	}
	return out, nil
}
