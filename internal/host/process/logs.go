package process

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
)

// Log is the section [log] of a configuration file.
type Log struct {
	level   slog.Level
	format  string
	Verbose bool // level info, or a lower one
}

// Settings are its keys. Their flags are called -log-level and -log-format.
func (l *Log) Settings() []setting.Setting {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "notice": nic.Notice,
		"warn": slog.LevelWarn, "error": slog.LevelError}
	level := setting.Parsed("log.level", &l.level, "notice", func(text string) (slog.Level, error) {
		v, ok := levels[text]
		if !ok {
			return v, fmt.Errorf("%q is not debug, info, notice, warn or error", text)
		}
		return v, nil
	}, "debug, info (-v), notice, warn or error; to stderr. notice is what is wrong, its end, and what settings ask for.").Flag("log-level", "")
	format := setting.OneOf("log.format", &l.format, "text", []setting.Choice{
		{Name: "text", Doc: "key=value"}, {Name: "json", Doc: "one JSON object per line"},
	}, "Log format:").Flag("log-format", "")
	return []setting.Setting{level, format}
}

// VerboseHelp describes a flag for Verbose.
const VerboseHelp = "log what the program does, too (log.level = \"info\")"

// New returns a logger that writes to w.
func (l *Log) New(w io.Writer) *slog.Logger {
	level := l.level
	if l.Verbose {
		level = min(level, slog.LevelInfo)
	}
	o := options(level)
	var h slog.Handler = slog.NewTextHandler(w, o)
	if l.format == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	return slog.New(&sparing{h, &budgets{left: map[string]*budget{}}})
}

// NewLog returns a logger in the form of text, whose level can change.
func NewLog(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, options(level)))
}

// options are those of a handler at a level. nic.Notice has no name in slog.
func options(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey && a.Value.Any() == nic.Notice {
			a.Value = slog.StringValue("NOTICE")
		}
		return a
	}}
}
