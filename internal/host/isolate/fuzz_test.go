package isolate

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

func FuzzJournal(f *testing.F) {
	whole := []byte(`{"pid":77,"started":5}` + "\n" + `{"what":"irq","path":"/proc/irq/9/smp_affinity","was":"3"}` +
		"\n")
	for n := range len(whole) + 1 {
		f.Add(whole[:n])
	}
	name := filepath.Join(f.TempDir(), "77")
	f.Fuzz(func(t *testing.T, b []byte) {
		must.OK(t, os.WriteFile(name, b, 0o600))
		readJournal(name)
	})
}

func FuzzCPUs(f *testing.F) {
	f.Add("0-3,8", "10f")
	f.Add("(null)\n", "1,00000000")
	f.Fuzz(func(t *testing.T, list, mask string) {
		if cpus, err := ParseCPUs(list); err == nil {
			again, err := ParseCPUs(FormatCPUs(cpus))
			if err != nil || !slices.Equal(again, cpus) {
				t.Errorf("%q is %v, and again %v, %v", list, cpus, again, err)
			}
		}
		if cpus, err := parseMask(mask); err == nil {
			again, err := parseMask(cpuMask(cpus))
			if err != nil || !slices.Equal(again, cpus) {
				t.Errorf("%q is %v, and again %v, %v", mask, cpus, again, err)
			}
		}
	})
}
