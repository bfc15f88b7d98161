package process

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// BuildStamp returns the module's version, or "(devel)" or "unknown" if the linker recorded none, and the date of the
// revision (2006-01-02), empty if unknown. Both are the same in every build of one revision.
func BuildStamp() (version, day string) { return stamp(debug.ReadBuildInfo()) }

func stamp(b *debug.BuildInfo, ok bool) (version, day string) {
	if !ok || b.Main.Version == "" {
		return "unknown", ""
	}
	for _, s := range b.Settings {
		if s.Key == "vcs.time" {
			day, _, _ = strings.Cut(s.Value, "T")
		}
	}
	return b.Main.Version, day
}

// Version returns what the linker recorded, one item per line: the module's version, the revision with its time, and
// the Go release with the platform.
func Version(program string) string {
	b, ok := debug.ReadBuildInfo()
	return describe(program, b, ok)
}

func describe(program string, b *debug.BuildInfo, ok bool) string {
	if !ok {
		b = &debug.BuildInfo{Main: debug.Module{Version: "unknown"}}
	}
	set := map[string]string{"vcs.revision": "unknown"} // outside of a repository, or with -buildvcs=false
	for _, s := range b.Settings {
		set[s.Key] = s.Value
	}
	revision := set["vcs.revision"]
	if t := set["vcs.time"]; t != "" {
		revision += " of " + t
	}
	if set["vcs.modified"] == "true" {
		revision += ", modified"
	}
	return fmt.Sprintf("%s %s\nrevision %s\n%s %s/%s\n", program, b.Main.Version, revision, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
}
