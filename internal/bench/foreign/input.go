package foreign

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// open opens a file, a pipe, or standard input for the path "-".
func open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// A named pipe in a folder has no writer perhaps, and opening it would block. A shell's <(...) is open already.
	if !info.Mode().IsRegular() && !strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/proc/") {
		return nil, fmt.Errorf("%s is neither a file nor a shell's pipe (read a pipe as standard input: -)", path)
	}
	return os.Open(path)
}

// readText reads all of r: decompressed, and decoded to UTF-8 without a byte order mark. Line breaks remain as they
// are.
func readText(name string, r io.Reader) ([]byte, error) {
	return readAll(name, r, 2)
}

// readAll reads a text in up to depth layers of compression.
func readAll(name string, r io.Reader, depth int) ([]byte, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var layer io.Reader
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		layer, err = gzip.NewReader(in)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20)); err == nil {
			defer z.Close()
			layer = z
		}
	default:
		return decoded(name, in)
	}
	if err == nil && depth == 0 {
		err = errors.New("compressed more than twice")
	}
	if err != nil {
		return nil, fmt.Errorf("%w%s: %w: %w", errNothing, name, errFormat, err)
	}
	return readAll(name, layer, depth-1)
}

// decoded reads a text of at most maxFile bytes in UTF-8 or, with a byte order mark, UTF-16.
func decoded(name string, r *bufio.Reader) ([]byte, error) {
	head, _ := r.Peek(4)
	in := io.Reader(r)
	wide := bytes.HasPrefix(head, []byte{0xff, 0xfe}) || bytes.HasPrefix(head, []byte{0xfe, 0xff})
	switch {
	case wide, bytes.HasPrefix(head, []byte{0xef, 0xbb, 0xbf}):
		in = transform.NewReader(r, unicode.BOMOverride(unicode.UTF8.NewDecoder()))
	case len(head) == 4 && head[1] == 0 && head[3] == 0 && head[0] != 0 && head[2] != 0:
		in = transform.NewReader(r, unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM).NewDecoder())
	}
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s: %w: more than %d MiB of text", name, errFormat, maxFile>>20)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s: %w: its compressed data is cut off", name, errFormat)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", name, errFormat, err)
	}
	return text, nil
}
