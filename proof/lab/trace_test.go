package lab

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim"
)

// traceDepth is how many events of a function a failed run saves.
const traceDepth = 1 << 14

func (f *function) leave(name string) error {
	w, err := os.Create(name)
	if err == nil {
		_, err = f.port.Trace().WriteTo(w)
		w.Close()
	}
	return err
}

// log prints what the guest showed under these keys.
func (r Result) log(t *testing.T, keys ...string) {
	for _, key := range keys {
		for _, line := range r[key] {
			if strings.TrimSpace(line) != "" {
				t.Log(key+":", line)
			}
		}
	}
}

// killed tolerates actions of a device whose driver was killed: after the kernel disables bus mastering, and before it
// resets the device, an event may be due or a message may be retransmitted. A real card's writes are blocked at its bus
// interface.
func (f *function) killed(is bool) {
	if v := f.port.Violations(); is && len(v) > 0 && !slices.ContainsFunc(v,
		func(s string) bool { return !strings.Contains(s, "DMA while bus mastering is off") }) {
		f.port.ForgetViolations()
	}
}

// clean fails the test if the driver violated a rule of the model. The first violation is usually the cause. Warnings
// about third-party drivers are logged.
func (f *function) clean(t *testing.T) {
	t.Helper()
	v := f.port.Violations()
	if f.foreign {
		told := slices.Clone(v)
		slices.Sort(told)
		for _, text := range slices.Compact(told) {
			t.Log("violation: ", text)
		}
		v = f.port.Errors()
	}
	if len(v) == 0 {
		return
	}
	t.Errorf("the first of %d violations: %s", len(v), v[0])
	before := f.port.Trace().Before
	for i := max(0, len(before)-8); i < len(before); i++ {
		t.Logf("what led to it: %12.6f %s", before[i].At.Seconds(), &before[i])
	}
	for i, text := range v[1:min(len(v), 10)] {
		t.Logf("violation %d: %s", i+2, text)
	}
}

func disagree(t *testing.T, when string, d []string) {
	t.Helper()
	for i, text := range d {
		if i == 0 {
			t.Errorf("at %q driver and model disagree, first in: %s", when, text)
		} else {
			t.Log("and: ", text)
		}
	}
}

// settling compares counters with the model's, which a driver may update late, or which the peer's last frames may
// change.
type settling struct {
	key   string
	since time.Time
}

// disagree has the guest show the counters again while they differ, as differ lists them, for up to patience, and then
// fails the test.
func (s *settling) disagree(t *testing.T, key string, d []string) error {
	t.Helper()
	if s.key != key {
		s.key, s.since = key, time.Now()
	}
	if len(d) > 0 && time.Since(s.since) < patience {
		return errAgain
	}
	disagree(t, key, d)
	return nil
}

// apart matches, for each type of card, the registers and fields that always differ between two drivers: addresses,
// object numbers, and queries.
var apart = map[string]*regexp.Regexp{
	"ixgbe": regexp.MustCompile(`^(MSI-X|[RT]DBA[LH]|RA[LH]\[|EERD|EEC|I2CCTL|SWSM|SW_FW_SYNC)`),
	"ena": regexp.MustCompile(
		`^(MSI-X|GET_|MMIO_|AQ_DB|AENQ_HEAD_DB|.*_BASE_|SET_FEATURE HOST_ATTR_CONFIG|CREATE_.Q\..q_ba)`),
	"mlx4": regexp.MustCompile(
		`^(MSI-X|UAR|HCR|QUERY_|MAP_|UNMAP_|WRITE_MTT)|\.(in_param|out_param|token|pa|va|.*qpn|.*cqn|.*eqn|.*db_record.*|.*mtt.*|pd|uar|usr_page|.*base.*|mem_key)$`),
	"mlx5": regexp.MustCompile(
		`^(MSI-X|UAR|QUERY_|command_doorbell|cmdq_phy_addr|SET_L2_TABLE_ENTRY.mac)|\.(uid|dbr_addr|.*_id|.*page.*|uar|.*cqn|.*eqn|.*[rs]qn.*|tirn|tisn|.*pd|mkey.*)$`),
}

// compare lists the differences between how Linux's driver and ours programmed the same type of device, in the order in
// which Linux wrote them. It asserts nothing: docs/internals/trust.md explains how to read it.
func (c *card) compare(t *testing.T, linux, ours *function) {
	differ, onlyLinux, onlyOurs := sim.Compare(linux.port.Trace(), ours.port.Trace())
	nature, by := 0, apart[c.name]
	for _, d := range differ {
		if by.MatchString(d.Name) {
			nature++
			continue
		}
		t.Logf("programmed: %s is %xh by Linux, %xh by us", d.Name, d.A, d.B)
	}
	t.Logf("programmed: %d more differ by nature (%v)", nature, by)
	t.Logf("programmed by Linux alone: %s", others(onlyLinux, by))
	t.Logf("programmed by us alone: %s", others(onlyOurs, by))
}

func others(names []string, apart *regexp.Regexp) string {
	var out []string
	for _, n := range names {
		if apart.MatchString(n) {
			continue
		}
		n, _, _ = strings.Cut(n, "[")
		n, _, _ = strings.Cut(n, ".")
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return strings.Join(out, " ")
}
