package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// equivalentFile lists mutations that no test can notice, one a line: file and change, " because ", and the reason.
// Lines that begin with # are comments.
//
//go:embed equivalent.txt
var equivalentFile string

const because = " because "

// key names a mutation without its line, which other changes move: the file from the module's root, and the change.
func (m mutation) key() string {
	root, _ := os.Getwd()
	file, err := filepath.Rel(root, m.file)
	if err != nil {
		file = m.file
	}
	return file + ": " + m.what
}

// readEquivalent returns the reasons by key.
func readEquivalent() (map[string]string, error) {
	all := map[string]string{}
	for i, line := range strings.Split(equivalentFile, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		key, reason, ok := strings.Cut(line, because)
		if !ok || reason == "" {
			return nil, fmt.Errorf("equivalent.txt:%d: no reason; want FILE: CHANGE%sREASON", i+1, because)
		}
		all[key] = reason
	}
	return all, nil
}
