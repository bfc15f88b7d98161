package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
)

// group is an entry of a file_sd file.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// reserved are the labels of rebound-watch's metrics: it refuses a file with one of them.
var reserved = []string{"target", "proto", "direction", "kind", "stat", "le", "quantile"}

// targets relabels the discovered targets, as Prometheus does before it scrapes. Of the labels that start with two
// underscores, only those that set parameters (__param_proto) are kept. job and instance are dropped: a scrape of the
// watch sets them. (The discovery of Kubernetes' nodes sets instance.)
func targets(jobs map[string]*config.ScrapeConfig, found map[string][]*targetgroup.Group,
	log *slog.Logger) (out []group) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		job := jobs[name]
		if job == nil { // it was removed, and the discovery has not noticed yet
			continue
		}
		for _, g := range found[name] {
			for _, t := range g.Targets {
				b := labels.NewBuilder(labels.EmptyLabels())
				for param, values := range job.Params {
					if len(values) > 0 {
						b.Set(model.ParamLabelPrefix+param, values[0])
					}
				}
				b.Set(model.JobLabel, name)
				for _, set := range []model.LabelSet{g.Labels, t} {
					for k, v := range set {
						b.Set(string(k), string(v))
					}
				}
				if !relabel.ProcessBuilder(b, job.RelabelConfigs...) {
					continue
				}
				address := b.Get(model.AddressLabel)
				if address == "" {
					log.Warn("a target has no address after relabelling: it is left out", "job", name, "source",
						g.Source)
					continue
				}
				e := group{Targets: []string{address}, Labels: map[string]string{}}
				b.Range(func(l labels.Label) {
					switch {
					case l.Name == model.JobLabel, l.Name == model.InstanceLabel, strings.HasPrefix(l.Name, "__") &&
						!strings.HasPrefix(l.Name, model.ParamLabelPrefix):
					case slices.Contains(reserved, l.Name):
						log.Warn("the watch's own metrics use this label: it is left out", "label", l.Name, "job", name,
							"target", address)
					default:
						e.Labels[l.Name] = l.Value
					}
				})
				id, _ := json.Marshal(e)
				if !seen[string(id)] {
					seen[string(id)] = true
					out = append(out, e)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b group) int {
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		return cmp.Or(strings.Compare(a.Targets[0], b.Targets[0]), bytes.Compare(x, y))
	})
	return out
}

// ready is the level of the line that the file exists.
const ready = slog.LevelInfo + 2

// writer keeps a file up to date.
type writer struct {
	file string
	log  *slog.Logger
	last []byte

	patience time.Duration // before an empty list is reported: discoveries may not have reported yet
	empty    *time.Timer   // nil while there are targets
}

// write replaces the file atomically if the targets have changed. An empty list is not written: it usually means that a
// discovery has not started yet, or lost its permission, rather than that the fleet is gone.
func (w *writer) write(all []group) {
	if len(all) == 0 {
		if w.empty == nil {
			w.empty = time.AfterFunc(w.patience, func() {
				w.log.Warn("nothing was discovered: the file is left as it is, if there is one", "file", w.file, "for",
					w.patience)
			})
		}
		return
	}
	if w.empty != nil {
		w.empty.Stop()
		w.empty = nil
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err == nil && bytes.Equal(text, w.last) {
		return
	}
	if err == nil {
		err = replace(w.file, append(text, '\n'))
	}
	if err != nil {
		w.log.Error("the file cannot be written", "file", w.file, "error", err)
		return
	}
	level := slog.LevelInfo
	if w.last == nil {
		level = ready
	}
	w.last = text
	w.log.Log(context.Background(), level, "targets written", "file", w.file, "targets", len(all))
}

// replace replaces a file atomically: a reader sees the old or the new content.
func replace(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".rebound-discover-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	if _, err = f.Write(text); err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
