package targets

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/random"
)

// Each line of a file of targets is a target with all of its labels, a comment, or an error with its number, however it
// was damaged.
func TestNoTargetIsDroppedSilently(t *testing.T) {
	rnd := random.New(t)
	good := []string{"10.0.0.2", "udp:10.0.0.3:9 site=ams", "stamp:[fd00::2]:862 rack=12 site=fra", "icmp:host.example",
		"stamp:10.0.0.4 __param_stamp_ssid=7", "udp:10.0.0.5 __param_interval=200ms __param_size=100"}
	var d Defaults
	for range 1000 {
		var lines []string
		for range 1 + rnd.IntN(5) {
			lines = append(lines, good[rnd.IntN(len(good))])
		}
		i := rnd.IntN(len(lines))
		b := []byte(lines[i])
		b[rnd.IntN(len(b))] = "x#0 ,:=[]._-\x00\xff"[rnd.IntN(14)]
		lines[i] = string(b)
		want := 0
		for k, line := range lines {
			text, _, _ := strings.Cut(line, "#")
			if strings.TrimSpace(text) != "" {
				want++
			}
			lines[k] = text
		}
		got, err := d.parseList("x", []byte(strings.Join(lines, "\n")))
		if err != nil {
			if !strings.HasPrefix(err.Error(), fmt.Sprintf("x:%d: ", i+1)) {
				t.Fatalf("%q: %v, want line %d", lines, err, i+1)
			}
			continue
		}
		if len(got) != want {
			t.Fatalf("%q: %d targets, want %d", lines, len(got), want)
		}
		rest := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.TrimSpace(l) == "" })
		for k, target := range got {
			labels := 0
			for _, word := range strings.Fields(rest[k])[1:] {
				if !strings.HasPrefix(word, "__param_") {
					labels++
				}
			}
			check.Equal(t, len(target.Labels), labels, fmt.Sprintf("%q: %%d labels", rest[k]))
		}
	}
}
