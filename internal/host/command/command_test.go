package command

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestTargetInPlaceOfCommand(t *testing.T) {
	for word, want := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "host.example.org": true, "run": false,
		"-h": false, "out/a.b": false} {
		check.Equal(t, isTarget(word), want, word+": %v")
	}
}
