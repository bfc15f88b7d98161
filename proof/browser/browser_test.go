package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Until may ask while a page is being replaced: each of 100 pages replaces itself with the next.
func TestUntilWhilePagesReplaceEachOther(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<script>const n = Number(location.search.slice(1)); if (n < 100) location.search = "?" + (n + 1)</script>`)
	}))
	defer server.Close()
	b := Start(t)
	b.Open(server.URL, 1280)
	b.Until(`location.search == "?100"`)
}
