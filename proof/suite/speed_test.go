package main

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestSpeed(t *testing.T) {
	hash, compile, err := speed()
	check.OK(t, err)
	if hash <= 0 || compile <= 0 {
		t.Errorf("hashing takes %v, compiling %v", hash, compile)
	}
	t.Log(hash, compile)
}
