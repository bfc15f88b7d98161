package latency

import "io"

// WriteHTML writes the report as one self-contained page.
func WriteHTML(w io.Writer, rep *Report) error { return nil }
