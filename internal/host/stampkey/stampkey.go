// Package stampkey reads the key of STAMP's HMACs, and keeps it out of all that is printed.
package stampkey

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// length is the length of a key in bytes.
const length = 32

// Key is a key; the zero value means none. It never prints its digits.
type Key struct {
	bytes []byte
	typed bool
}

// Bytes are the key itself: Length bytes, or none.
func (k Key) Bytes() []byte { return k.bytes }

// Typed reports whether the digits themselves were given, not the name of a file that has them.
func (k Key) Typed() bool { return k.typed }

func (k Key) String() string {
	if k.bytes == nil {
		return "none"
	}
	return "hidden"
}

// GoString and LogValue keep the key from %#v and from logs.
func (k Key) GoString() string     { return k.String() }
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Parse reads a key: 64 hexadecimal digits, or the path (with a slash) of a file that contains them; the empty string
// means no key. No error contains any part of the key.
func Parse(text string) (Key, error) {
	switch {
	case text == "":
		return Key{}, nil
	case strings.Contains(text, "/"):
		return Read(text)
	}
	b, err := digits(text)
	if err != nil {
		return Key{}, fmt.Errorf(
			"%w (want %d hexadecimal digits, or the path of a file that has them, with a slash: ./key)", err, 2*length)
	}
	return Key{b, true}, nil
}

// Read reads a key from a file that only its owner may read and write. The owner must be this user or root.
func Read(path string) (Key, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return Key{}, err
	}
	defer f.Close()
	if err := Private(f); err != nil {
		return Key{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return Key{}, err
	}
	b, err := digits(strings.TrimSpace(string(text)))
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w (want %d hexadecimal digits: openssl rand -hex %d)", path, err, 2*length,
			length)
	}
	return Key{b, false}, nil
}

// PrivateFile is Private for a file that is not open.
func PrivateFile(path string) error {
	f, err := atomicfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return Private(f)
}

// Private returns an error if anyone but its owner may read or write the file f.
func Private(f fs.File) error {
	i, err := f.Stat()
	if err != nil {
		return err
	}
	if !i.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", i.Name())
	}
	if m := i.Mode().Perm(); m&0o077 != 0 {
		return fmt.Errorf("%s has mode %#o: it has a key, so only its owner may access it (chmod 600)", i.Name(), m)
	}
	return nil
}

func digits(text string) ([]byte, error) {
	b, err := hex.DecodeString(text)
	var odd hex.InvalidByteError
	switch {
	case errors.As(err, &odd):
		return nil, fmt.Errorf("a character is not a hexadecimal digit")
	case err != nil || len(b) != length:
		return nil, fmt.Errorf("%d characters", len(text))
	}
	return b, nil
}
