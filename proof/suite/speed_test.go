package main

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
)

func TestSpeed(t *testing.T) {
	needs.Long(t) // every run measures it
	m, err := speed()
	check.OK(t, err)
	check.Equal(t, m.hash > 0 && m.compile > 0 && m.wake > 0, true, m.String()+", which takes time: %t")
	t.Log(m)
}
