package fleet

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/fleet/matrix"
	"github.com/rebound-nic/rebound/fleet/prom"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
)

const matrixHelp = `usage: rebound-watch matrix -prom URL [flags]

Draws what the watches of many hosts measured of each other, as a Prometheus that scrapes them keeps it: one page that opens offline, with
p50, p99, loss and a verdict against a baseline for each path, from who measured (rows) to what was measured (columns). A matrix of more than
2,500 cells is one of zones, with the paths of each pair of zones below. Paths that changed or lose probes are printed, too.

  rebound-watch matrix -prom http://127.0.0.1:9090
  rebound-watch matrix -prom http://127.0.0.1:9090 -range 6h -before 7d -to site -label job=mesh -out sites.html

`

func matrixCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("matrix", flag.ContinueOnError)
	base := fs.String("prom", "", "`URL` of the Prometheus; required")
	at := fs.String("at", "now", "`TIME` at which the matrix ends: RFC 3339, seconds since 1970, now or now-2h")
	length := fs.String("range", "1h", "`TIME` that the matrix covers; the baseline covers the same")
	before := fs.String("before", "1d", "`TIME` from the baseline to the matrix")
	o := prom.MatrixOptions{}
	fs.IntVar(&o.Windows, "windows", prom.DefaultWindows,
		"`N` windows to split each into; each counts as one run; a verdict needs eight, or more with a hundred paths")
	fs.StringVar(&o.FromName, "from", "",
		"`LABEL` that names the measuring host; by default the node that a watch with -peers reports, or else instance")
	fs.StringVar(&o.ToName, "to", "", "`LABEL` that names the target; by default node, or target without it")
	fs.Func("label", "`NAME=VALUE` label that all series must have; may be repeated", func(v string) error {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q: want NAME=VALUE", v)
		}
		o.Labels = append(o.Labels, prom.Label{Name: name, Value: value})
		return nil
	})
	out := fs.String("out", "matrix.html", "`FILE` for the page")
	if err := e.Parse(fs, args, matrixHelp); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return process.Usagef("unexpected argument %q: every value needs its flag", strings.Join(fs.Args(), " "))
	}
	if *base == "" {
		return process.Usagef("-prom is missing: the URL of the Prometheus, like http://127.0.0.1:9090")
	}
	now := time.Now()
	var err error
	if o.At, err = prom.ParseTime(*at, now); err != nil {
		return process.Usagef("-at: %w", err)
	}
	for name, d := range map[string]struct {
		text string
		to   *time.Duration
	}{"range": {*length, &o.Range}, "before": {*before, &o.Before}} {
		t, err := prom.ParseTime("now-"+d.text, now)
		if *d.to = now.Sub(t); err != nil || *d.to <= 0 {
			return process.Usagef("-%s %q: want a time like 1h or 7d", name, d.text)
		}
	}
	server := &prom.Server{}
	if server.Base, err = prom.ParseBase(*base); err != nil {
		return process.Usagef("-prom: %w", err)
	}
	for _, l := range append([]prom.Label{{Name: cmp.Or(o.FromName, "instance")}, {Name: cmp.Or(o.ToName, "target")}},
		o.Labels...) {
		if err := prom.CheckLabel(l.Name); err != nil {
			return process.Usagef("-from, -to, -label: %w", err)
		}
	}
	if o.Windows < 1 || o.Windows > 1000 || o.Range/time.Duration(o.Windows) < time.Second {
		return process.Usagef("-windows %d of -range %s: want 1 to 1000, a second or longer each", o.Windows, *length)
	}
	m, err := server.Matrix(context.Background(), o)
	if err != nil {
		return err
	}
	failed := matrix.Print(e.Stdout, m)
	return errors.Join(failed, e.WritePage(*out, func(w io.Writer) error { return matrix.Write(w, m) }))
}
