// Package logs has the settings of a program's log, and creates the logger.
package logs

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// Log is the section [log] of a configuration file.
type Log struct {
	level  slog.Level
	format string
}

// Settings are its keys. Their flags are called -log-level and -log-format.
func (l *Log) Settings() []setting.Setting {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level := setting.Parsed("log.level", &l.level, "info", func(text string) (slog.Level, error) {
		v, ok := levels[text]
		if !ok {
			return v, fmt.Errorf("%q is not debug, info, warn or error", text)
		}
		return v, nil
	}, "debug, info, warn or error; to stderr.").Flag("log-level", "")
	format := setting.OneOf("log.format", &l.format, "text", []setting.Choice{
		{Name: "text", Doc: "key=value"}, {Name: "json", Doc: "one JSON object per line"},
	}, "Log format:").Flag("log-format", "")
	return []setting.Setting{level, format}
}

// New returns a logger that writes to w.
func (l *Log) New(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: l.level}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if l.format == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	return slog.New(&sparing{h, &budgets{left: map[string]*budget{}}})
}
