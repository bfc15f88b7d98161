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

// The table of PCI IDs in docs/cards/drivers.md follows from internal/cards: go test -run TestDriverTable ./proof/house -update
func TestDriverTable(t *testing.T) {
	const page, begin, end = "docs/cards/drivers.md", "<!-- PCI IDs: written by go test -run TestDriverTable ./proof/house -update -->\n", "<!-- end -->\n"
	text := read(t, page)
	before, rest, ok := strings.Cut(text, begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %q and %q around the table", page, begin, end)
	}
	if table == cards.Table() {
		return
	}
	if !*update {
		t.Fatalf("%s: the table of PCI IDs is not that of internal/cards: go test -run TestDriverTable ./proof/house -update", page)
	}
	must.OK(t, os.WriteFile(page, []byte(before+begin+cards.Table()+end+after), 0o644))
}

func TestBringUpPagesAreLinked(t *testing.T) {
	readme, drivers := read(t, "README.md"), read(t, "docs/cards/drivers.md")
	for _, page := range cards.Pages() {
		if !strings.Contains(readme, "(docs/cards/"+page+")") || !strings.Contains(drivers, "("+page+")") {
			t.Errorf("README.md or docs/cards/drivers.md does not link to %s", page)
		}
	}
}
