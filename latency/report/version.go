package report

import "runtime/debug"

// buildVersion returns the module version or the revision that the running program was built from.
func buildVersion() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(b)
}

func versionOf(b *debug.BuildInfo) string {
	rev, dirty := "", ""
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " modified"
		}
	}
	if rev == "" {
		return b.Main.Version
	}
	return rev + dirty
}
