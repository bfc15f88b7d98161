package stampkey

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

const good = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func TestParse(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		must.OK(t, os.Chmod(path, mode))
		return path
	}
	for _, c := range []struct{ text, wrong string }{
		{"", ""},
		{good, ""},
		{strings.ToUpper(good), ""},
		{file("key", good+"\n", 0o600), ""},
		{file("readonly", good, 0o400), ""},
		{good[1:], "63 characters (want 64 hexadecimal digits, or the path"},
		{good + "00", "66 characters (want 64 hexadecimal digits, or the path"},
		{"z" + good[1:], "a character is not a hexadecimal digit (want 64 "},
		{filepath.Join(dir, "none"), "no such file"},
		{dir + "/", "is not a regular file"},
		{file("group", good, 0o640), "mode 0640: it has a key"},
		{file("world", good, 0o604), "chmod 600"},
		{file("short", "0011", 0o600), "short: 4 characters (want 64 hexadecimal digits: openssl rand -hex 32)"},
		{file("words", "z"+good[1:], 0o600), "a character is not a hexadecimal digit"},
	} {
		k, err := Parse(c.text)
		switch {
		case c.wrong == "" && err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.wrong == "" && c.text != "" && (len(k.Bytes()) != length || k.Bytes()[31] != 0x1f ||
			k.Typed() == strings.Contains(c.text, "/")):
			t.Errorf("%q: %d bytes, typed %t", c.text, len(k.Bytes()), k.Typed())
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%q: %v, want %q", c.text, err, c.wrong)
		case err != nil && strings.Contains(err.Error(), good[8:32]):
			t.Errorf("the error has the key in it: %v", err)
		}
	}
}

func TestNeverPrinted(t *testing.T) {
	k := must.Get(Parse(good))(t)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", k, "in", struct{ K Key }{k})
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s %q", k, k, k, k, k),
		fmt.Sprintf("%+v", struct{ K Key }{k}), log.String()} {
		if strings.Contains(s, good[:16]) || strings.Contains(s, "0 1 2") || !strings.Contains(s, "hidden") {
			t.Errorf("printed: %s", s)
		}
	}
}
