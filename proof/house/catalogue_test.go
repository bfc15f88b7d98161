package house_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/proof/must"
)

var update = flag.Bool("update", false, "write the tables in docs that follow from the catalogue of cards")

// The tables of PCI IDs and of kernels in docs/cards/drivers.md follow from internal/cards: go test -run
// TestDriverTable ./proof/house -update
func TestDriverTable(t *testing.T) {
	const page = "docs/cards/drivers.md"
	for _, c := range []struct{ what, end, table string }{
		{"PCI IDs", "<!-- end -->\n", cards.Table()},
		{"kernels", "<!-- end of kernels -->\n", cards.KernelTable()},
	} {
		begin := "<!-- " + c.what + ": written by go test -run TestDriverTable ./proof/house -update -->\n"
		before, rest, ok := strings.Cut(read(t, page), begin)
		table, after, closed := strings.Cut(rest, c.end)
		switch {
		case !ok || !closed:
			t.Fatalf("%s has no %q and %q around the table", page, begin, c.end)
		case table == c.table:
		case *update:
			must.OK(t, os.WriteFile(page, []byte(before+begin+c.table+c.end+after), 0o644))
		default:
			t.Errorf("%s: the table of %s is not that of internal/cards: go test -run TestDriverTable ./proof/house -update", page, c.what)
		}
	}
}

func TestBringUpPagesAreLinked(t *testing.T) {
	readme, drivers := read(t, "README.md"), read(t, "docs/cards/drivers.md")
	for _, page := range cards.Pages() {
		if !strings.Contains(readme, "(docs/cards/"+page+")") || !strings.Contains(drivers, "("+page+")") {
			t.Errorf("README.md or docs/cards/drivers.md does not link to %s", page)
		}
	}
}
