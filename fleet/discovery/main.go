// Command rebound-discover writes the list of targets that rebound-watch reads, from the service discoveries of
// Prometheus and its relabelling: Kubernetes, files, HTTP, DNS, Consul and AWS. It takes a Prometheus configuration, or
// a part of one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"golang.org/x/sys/unix"

	// Each registers its section of a scrape configuration.
	_ "github.com/prometheus/prometheus/discovery/aws"
	_ "github.com/prometheus/prometheus/discovery/consul"
	_ "github.com/prometheus/prometheus/discovery/dns"
	_ "github.com/prometheus/prometheus/discovery/file"
	_ "github.com/prometheus/prometheus/discovery/http"
	_ "github.com/prometheus/prometheus/discovery/kubernetes"
)

// usage and about are the help before the flags, and the manual page (rebound-discover.1, which TestManual writes with
// -update).
const usage = `rebound-discover -config FILE -out FILE.json
rebound-discover -written -out FILE.json`

const about = `Finds targets with the service discoveries of Prometheus, and keeps a file in the format of file_sd up to date, for rebound-watch
-file-sd. The configuration is a prometheus.yml, or only its scrape_configs, or only their list: *_sd_configs, relabel_configs and params
count, the rest is ignored. It ends at SIGTERM or Ctrl-C; SIGHUP reads the configuration again.

  rebound-discover -config prometheus.yml -out /run/rebound/fleet.json
  rebound-watch -file-sd /run/rebound/fleet.json -peers 20`

const exit = `0 done, 1 failed, 2 wrong usage or a configuration that cannot be read.`

// settle is the longest delay of a change in Prometheus' discovery. The first one after a calm has none.
const settle = 5 * time.Second

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags.
type options struct {
	file, out        string
	written, version bool
	verbose          bool
}

func (o *options) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("rebound-discover", flag.ContinueOnError)
	fs.StringVar(&o.file, "config", "", "`FILE` with scrape_configs; required")
	fs.StringVar(&o.out, "out", "", "`FILE.json` to write; required")
	fs.BoolVar(&o.written, "written", false,
		"only check whether -out has been written: the exit status is 0 or 1 (a startup probe in Kubernetes)")
	fs.BoolVar(&o.verbose, "v", false, "log what is written and read, too")
	fs.BoolVar(&o.version, "version", false, "print the version")
	return fs
}

// run returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	var o options
	fs := o.flags()
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: %s\n\n%s\n\n", strings.ReplaceAll(usage, "\n", "\n       "), about)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "rebound-discover: %v\n", err)
		return code
	}
	switch {
	case fs.NArg() > 0:
		return fail(2, fmt.Errorf("%q is left over: every value needs its flag", strings.Join(fs.Args(), " ")))
	case o.version:
		b, _ := debug.ReadBuildInfo()
		fmt.Fprintln(stdout, "rebound-discover", b.Main.Version)
		return 0
	case o.file == "" && !o.written:
		return fail(2, errors.New("-config is missing: a file with scrape_configs"))
	case filepath.Ext(o.out) != ".json":
		return fail(2, fmt.Errorf("-out %q: want a file that ends in .json, as file_sd requires", o.out))
	case o.written:
		if _, err := os.Stat(o.out); err != nil {
			return fail(1, err)
		}
		return 0
	}
	level := ready
	if o.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	jobs, err := load(o.file, log)
	if err != nil {
		return fail(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	reload := func() (map[string]*config.ScrapeConfig, error) { return load(o.file, log) }
	if err := follow(ctx, jobs, o.out, settle, hup, reload, log); err != nil {
		return fail(1, err)
	}
	return 0
}

// load reads the scrape configurations of a file, by name of the job.
func load(file string, log *slog.Logger) (map[string]*config.ScrapeConfig, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c, err := config.Load(whole(string(text)), log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	c.SetDirectory(filepath.Dir(file))
	all, err := c.GetScrapeConfigs()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	jobs := map[string]*config.ScrapeConfig{}
	for _, job := range all {
		jobs[job.JobName] = job
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("%s: it has no scrape_configs", file)
	}
	return jobs, nil
}

// whole returns a configuration with a list of scrape configurations.
func whole(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line == "---" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "- "):
			return "scrape_configs:\n" + strings.TrimPrefix(text, "---\n")
		default:
			return text
		}
	}
	return text
}

// follow writes the targets of the jobs to a file whenever they change, until ctx is done, which is no error.
func follow(ctx context.Context, jobs map[string]*config.ScrapeConfig, out string, settle time.Duration,
	hup <-chan os.Signal,
	reload func() (map[string]*config.ScrapeConfig, error), log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	metrics, err := discovery.CreateAndRegisterSDMetrics(registry)
	if err != nil {
		return err
	}
	m := discovery.NewManager(ctx, log, registry, metrics, discovery.Name("rebound"), discovery.Updatert(settle))
	if m == nil {
		return errors.New("the discovery of Prometheus cannot be started: the log says why")
	}
	apply := func(jobs map[string]*config.ScrapeConfig) error {
		c := map[string]discovery.Configs{}
		for name, job := range jobs {
			c[name] = job.ServiceDiscoveryConfigs
		}
		return m.ApplyConfig(c)
	}
	if err := apply(jobs); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.Run() // it ends with ctx, and returns the reason
	}()
	w := &writer{file: out, log: log, patience: settle}
	// A file of an earlier process stays until the discoveries, which report one after the other, have had the time to
	// report everything.
	var hold <-chan time.Time
	if _, err := os.Stat(out); err == nil {
		hold = time.After(settle)
	}
	var found map[string][]*targetgroup.Group
	for {
		select {
		case <-hold:
			if hold = nil; found != nil {
				w.write(targets(jobs, found, log))
			}
		case <-ctx.Done():
			<-ended
			return nil
		case <-hup:
			again, err := reload()
			if err == nil {
				err = apply(again)
			}
			if err != nil {
				log.Error("SIGHUP: the configuration is wrong, and the previous one stays in force", "error", err)
				continue
			}
			jobs = again
			log.Info("SIGHUP: the configuration was read again")
		case groups, ok := <-m.SyncCh():
			if !ok { // it ends with ctx
				return nil
			}
			if found = groups; hold == nil {
				w.write(targets(jobs, found, log))
			} else {
				log.Info("the file of an earlier process stays until all discoveries have had the time to report",
					"file", out, "longest", settle)
			}
		}
	}
}
