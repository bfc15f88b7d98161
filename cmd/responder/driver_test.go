package main

import (
	"log/slog"
	"strings"
	"testing"

	"rebound/nic"
)

// A socket is not asked to push: it would silently not.
func TestSocketDoesNotPush(t *testing.T) {
	for _, driver := range []string{"auto", "afpacket", "afxdp"} {
		s := &settings{config: defaults()}
		s.NIC.Driver, s.NIC.Push = driver, "llq"
		_, err := openDevice(s, nic.Options{Device: "lo", Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), `lo: push mode "llq" is none of auto, off`) {
			t.Errorf("%s with nic.push = llq: %v", driver, err)
		}
	}
}
