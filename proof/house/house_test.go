// Package house has the rules that hold for the whole repository: imports, words, docs, tests that may sleep, and how a
// frame is answered.
package house_test

import (
	"log"
	"os"
	"testing"
)

// Every path is relative to the repository's root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		log.Fatal(err)
	}
	m.Run()
}
