package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write rebound-discover.1")

// rebound-discover.1 has the program's help and flags. It is committed, because packaging runs a program to get its
// page, and would have to compile this one for minutes once more to package it for another architecture.
func TestManual(t *testing.T) {
	const file = "rebound-discover.1"
	want := manual()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is out of date (%v): write it with go -C fleet/discovery test -run TestManual . -update", file,
			err)
	}
}

// manual returns the page in the macros of man(7), laid out like those of internal/host/manual.
func manual() string {
	escape := strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.").Replace
	var b strings.Builder
	b.WriteString(".\\\" Generated from the program's flags by TestManual.\n" +
		".TH \"REBOUND\\-DISCOVER\" 1 \"\" \"Rebound\"\n.SH NAME\n" +
		`rebound\-discover \- list targets by the service discoveries of Prometheus` + "\n.SH SYNOPSIS\n" +
		strings.ReplaceAll(escape(usage), "\n", "\n.br\n") + "\n.SH DESCRIPTION\n")
	for i, block := range strings.Split(about, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(block, " ") {
			b.WriteString(".nf\n" + escape(block) + "\n.fi\n")
		} else {
			b.WriteString(escape(block) + "\n")
		}
	}
	b.WriteString(".SH OPTIONS\n")
	new(options).flags().VisitAll(func(f *flag.Flag) {
		value, doc := flag.UnquoteUsage(f)
		if value != "" {
			value = ` \fI` + escape(value) + `\fR`
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR%s\n%s\n", escape("-"+f.Name), value, escape(doc))
	})
	b.WriteString(".SH EXIT STATUS\n" + escape(exit) + "\n.SH SEE ALSO\n" +
		escape("rebound-bench(1), rebound-watch(5)") + "\n")
	return b.String()
}
