package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kit is the lab, or a skip with the reason why this host has none.
func kit(t *testing.T) *Kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	k, err := Setup(ctx)
	if errors.Is(err, ErrCannot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// logDir is a folder for a run's logs that stays if the test fails.
func logDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lab-"+strings.ReplaceAll(t.Name(), "/", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of guest and model: %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

func TestGuestScript(t *testing.T) {
	guests(t)
	k := kit(t)
	t.Log(k.Version)
	var said []string
	r, err := k.Run(t.Context(), Machine{
		Limit:  time.Minute,
		Dir:    logDir(t),
		Script: "say hello world\nshow file cat /lab/data\nneed test -d /lab\n",
		Files:  map[string][]byte{"data": []byte("one\ntwo\n")},
		Say: func(key, text string, _ Result) error {
			if key == "unbooted" { // a busy machine's: it begins anew
				said = nil
				return nil
			}
			said = append(said, key+" "+text)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r["file"], ","); got != "one,two" {
		t.Errorf("the guest showed %q", got)
	}
	if len(said) != 2 || said[1] != "hello world" || !strings.HasPrefix(said[0], "boot ") {
		t.Errorf("the guest said %q", said)
	}
	_, err = k.Run(t.Context(), Machine{Dir: logDir(t), Limit: time.Minute, Script: "need ls /nowhere\n"})
	if !errors.Is(err, ErrGuest) || !strings.Contains(err.Error(), "/nowhere: No such file") {
		t.Errorf("a failing script gives %v", err)
	}
}

// A guest that does not end is ended, and what QEMU's threads did is noted.
func TestGuestThatHangs(t *testing.T) {
	guests(t)
	dir := logDir(t)
	_, err := kit(t).Run(t.Context(), Machine{Dir: dir, Limit: time.Second, Script: "say asleep\nsleep 10000\n"})
	if !errors.Is(err, ErrGuest) || !strings.Contains(err.Error(), "no end in time; it said last: asleep") {
		t.Errorf("a guest that does not end gives %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "threads.log")); err != nil || !strings.Contains(string(b), "comm: ") {
		t.Errorf("%v; of QEMU's threads there is %q", err, b)
	}
}

// A guest that does not come as far as its init is booted again, and then given up.
func TestGuestDoesNotBoot(t *testing.T) {
	guests(t)
	k := *kit(t)
	dir := logDir(t)
	k.Kernel = filepath.Join(dir, "kernel")
	if err := os.WriteFile(k.Kernel, []byte("no kernel"), 0o644); err != nil {
		t.Fatal(err)
	}
	var said []string
	_, err := k.Run(t.Context(), Machine{
		Dir: dir, Limit: time.Minute,
		Say: func(key, text string, _ Result) error { said = append(said, key); return nil },
	})
	if !errors.Is(err, ErrGuest) || !strings.Contains(err.Error(), "it said last: nothing") {
		t.Errorf("a guest without a kernel gives %v", err)
	}
	if got := strings.Join(said, " "); got != "unbooted unbooted" {
		t.Errorf("it was told of %q, want two boots more", got)
	}
}
