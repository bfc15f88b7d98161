package fleet

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/rows"
)

func TestEveryRowRoundTrips(t *testing.T) {
	rows.RoundTrip(t, func() (*setting.Table, func() string) {
		s := newWatchSettings()
		return s.table, func() string {
			values := *s
			values.table = nil
			return fmt.Sprintf("%+v", values)
		}
	}, "testdata/settings.txt")
}
