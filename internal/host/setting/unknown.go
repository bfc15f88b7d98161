package setting

import (
	"flag"
	"fmt"
	"strings"
)

// Unknown returns err, of parsing fs, with the flag that a user may have meant by one that is not defined.
func Unknown(err error, fs *flag.FlagSet) error {
	name, is := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !is {
		return err
	}
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return fmt.Errorf("unknown flag -%s%s", name, Meant("-", strings.TrimPrefix(name, "-"), names))
}

// Meant returns " (did you mean X?)" for the name that differs from word in the fewest letters, up to two; "" if there
// is none.
func Meant(before, word string, names []string) string {
	near, best := "", min(3, len(word))
	for _, name := range names {
		if n := distance(word, name); n < best && len(word) <= 64 {
			near, best = name, n
		}
	}
	if near == "" {
		return ""
	}
	return " (did you mean " + before + near + "?)"
}
