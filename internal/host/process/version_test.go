package process

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// The version is what the linker recorded, as far as it did.
func TestVersion(t *testing.T) {
	built := func(version string, set ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: set}
	}
	at := debug.BuildSetting{Key: "vcs.time", Value: "2026-05-04T03:02:01Z"}
	rev := debug.BuildSetting{Key: "vcs.revision", Value: "abc"}
	check.Contains(t, Version("prog"), "prog ", "\nrevision ", "\n"+runtime.Version()+" ")
	for _, c := range []struct {
		b         *debug.BuildInfo
		stamp, is string
	}{
		{nil, "unknown ", "x unknown\nrevision unknown\n"},
		{built(""), "unknown ", "x \nrevision unknown\n"},
		{built("v1", rev), "v1 ", "x v1\nrevision abc\n"},
		{built("v1", rev, at, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), "v1 2026-05-04",
			"x v1\nrevision abc of 2026-05-04T03:02:01Z\n"},
		{built("v1", at, rev, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "v1 2026-05-04",
			"x v1\nrevision abc of 2026-05-04T03:02:01Z, modified\n"},
	} {
		version, day := stamp(c.b, c.b != nil)
		check.Equal(t, version+" "+day, c.stamp, "%q")
		check.Equal(t, describe("x", c.b, c.b != nil), fmt.Sprintf("%s%s %s/%s\n", c.is, runtime.Version(), runtime.GOOS, runtime.GOARCH), "%q")
	}
}
