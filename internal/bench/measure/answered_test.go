package measure

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// moody returns every frame except those of some Sends.
type moody struct {
	silent int // number of Sends from now on without a reply
	queue  [][]byte
	last   []byte
}

func (m *moody) Send(b []byte) error {
	m.last = bytes.Clone(b)
	if m.silent--; m.silent < 0 {
		m.queue = append(m.queue, m.last)
	}
	return nil
}

func (m *moody) Recv(buf []byte) (n int, at int64, err error) {
	if len(m.queue) > 0 {
		n = copy(buf, m.queue[0])
		m.queue = m.queue[1:]
	}
	return n, 0, nil
}

// A late reply to a probe sent before a hook changed something does not count as an answer to a new probe.
func TestAnswered(t *testing.T) {
	m := &moody{}
	s := datagrams(m, nil, 0)
	must.OK(t, s.Answered())
	m.queue, m.silent = [][]byte{m.last}, 2
	if err := s.Answered(); err != nil || m.silent >= 0 {
		t.Errorf("%v; the reply to an earlier probe was taken: %d probes more were not to be answered", err, m.silent)
	}
}
