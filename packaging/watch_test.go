package main

import (
	"strings"
	"testing"
	"time"
)

// testWatch starts the watch's unit with a target that the kernel at the other end answers, reloads it and stops it.
func testWatch(t *testing.T, b *booted) {
	t.Helper()
	journal := func() string { return b.journal("rebound-watch") }
	b.write(t, "/etc/rebound/watch.env", "OPTIONS=-target 10.9.0.1 -rate 20 -interval 1s -listen 127.0.0.1:9470\n")
	if out, err := b.sh("ip addr add 10.9.0.3/24 dev eth1; systemctl start rebound-watch && systemctl reload rebound-watch"); err != nil {
		t.Fatalf("%v %s\n%s", err, out, journal())
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(300 * time.Millisecond) {
		logged, _ := b.sh("cat /var/lib/rebound-watch/*.hlog")
		if strings.Contains(logged, "Tag=icmp-10-9-0-1-") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the watch has logged no round trip in three minutes\n%s\n%s", logged, journal())
		}
	}
	b.sh("systemctl stop rebound-watch; ip addr del 10.9.0.3/24 dev eth1")
	if result, err := b.sh("systemctl show -P Result rebound-watch"); err != nil || result != "success" {
		t.Errorf("the watch ended with %q, %v\n%s", result, err, journal())
	}
}
