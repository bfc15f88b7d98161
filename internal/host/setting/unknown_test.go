package setting_test

import (
	"flag"
	"io"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestUnknownFlag(t *testing.T) {
	for given, want := range map[string]string{
		"-durtion":  "unknown flag -durtion (did you mean -duration?)",
		"--duraton": "unknown flag -duraton (did you mean -duration?)",
		"-x":        "unknown flag -x", // every flag of one letter is near
		"-colour":   "unknown flag -colour",
		"-duration": "flag needs an argument: -duration",
	} {
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Bool("v", false, "")
		fs.String("duration", "", "")
		check.Equal(t, setting.Unknown(fs.Parse([]string{given}), fs).Error(), want, given+": %q")
	}
}
