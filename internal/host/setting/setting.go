// Package setting keeps a program's settings in one table: name, type, default, check and description of each. The keys
// of a TOML file, KEY=VALUE pairs, command line flags and their descriptions are all derived from it.
package setting

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting is one setting. The functions below create one for a variable, which has the default until Table.Apply.
type Setting struct {
	Key     string // section and name: "nic.push"
	Kind    Kind
	Default string // as TOML writes it
	Doc     string // whole sentences; an empty line separates paragraphs

	// Drivers are the drivers that support the setting; nil if it does not depend on the driver.
	Drivers []string

	// Needs are conditions on other settings, one of which must be met for this one to have an effect: "KEY=VALUE",
	// "KEY!=VALUE", or "KEY" for any value but the default. nil if it depends on none.
	Needs []string

	// FlagName is the name of the command line flag, if it is not Name with hyphens. Arg is the help's placeholder for
	// the value: a word of Doc.
	FlagName, Arg string

	// Choices are the values of a setting that accepts only a few, otherwise nil.
	Choices []Choice

	// apply checks a value of the right kind and stores it in the variable. An elementError identifies the element at
	// fault.
	apply func(value any) error
}

// Section and Name are the two parts of the key.
func (s *Setting) Section() string { a, _, _ := strings.Cut(s.Key, "."); return a }
func (s *Setting) Name() string    { _, b, _ := strings.Cut(s.Key, "."); return b }

// Choice is one of the values that a setting accepts.
type Choice struct{ Name, Doc string }

// Kind is the TOML type of a setting.
type Kind int

const (
	Text     Kind = iota // string
	Integer              // int64
	Boolean              // bool
	Texts                // []any of string
	Integers             // []any of int64
	Items                // []any of string or int64
	item                 // an element of those
)

func (k Kind) String() string {
	return [...]string{"a string", "an integer", "true or false", "a list of strings", "a list of integers",
		"a list of strings and integers", "a string or an integer"}[k]
}

// elem is the kind of a list's elements.
func (k Kind) elem() (Kind, bool) {
	switch k {
	case Texts:
		return Text, true
	case Integers:
		return Integer, true
	case Items:
		return item, true
	}
	return k, false
}

// In returns the setting with the conditions of Needs.
func (s Setting) In(conditions ...string) Setting {
	s.Needs = conditions
	return s
}

// Flag returns the setting with another name for its flag, unless empty, and a placeholder for the flag's value.
func (s Setting) Flag(name, arg string) Setting {
	s.FlagName, s.Arg = name, arg
	return s
}

// elementError is a problem with one element of a list.
type elementError struct {
	index int
	error
}

func each[V, T any](value any, parse func(V) (T, error)) ([]T, error) {
	list := value.([]any)
	out := make([]T, 0, len(list))
	for i, v := range list {
		t, err := parse(v.(V))
		if err != nil {
			return nil, elementError{i, err}
		}
		out = append(out, t)
	}
	return out, nil
}

// String creates a setting that accepts any string that passes check, if check is not nil.
func String(key string, to *string, def string, check func(string) error, doc string) Setting {
	return Parsed(key, to, def, func(s string) (string, error) {
		if check == nil {
			return s, nil
		}
		return s, check(s)
	}, doc)
}

// Parsed creates a setting that is written as a string and converted by parse, which must accept def.
func Parsed[T any](key string, to *T, def string, parse func(string) (T, error), doc string) Setting {
	*to = must(parse(def))
	return Setting{Key: key, Kind: Text, Default: quote(def), Doc: doc, apply: func(v any) error {
		t, err := parse(v.(string))
		if err == nil {
			*to = t
		}
		return err
	}}
}

// OneOf creates a setting that accepts one of these strings. def must be one of them.
func OneOf(key string, to *string, def string, choices []Choice, doc string) Setting {
	return String(key, to, def, nil, doc).OneOf(choices)
}

// OneOf returns the setting restricted to these values.
func (s Setting) OneOf(choices []Choice) Setting {
	s.Choices = choices
	return s
}

// put checks a value of the right kind and stores it in the variable.
func (s *Setting) put(value any) error {
	if text, ok := value.(string); ok && s.Choices != nil && !slices.Contains(s.Values(), text) {
		return fmt.Errorf("%q is not one of %s", text, strings.Join(
			slices.DeleteFunc(s.Values(), func(v string) bool { return v == "" }), ", "))
	}
	return s.apply(value)
}

// Interval creates a setting that accepts a duration of at least least, and "0s" for off, the default.
func Interval(key string, to *time.Duration, least time.Duration, doc string) Setting {
	return Parsed(key, to, "0s", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d != 0 && d < least {
			return 0, fmt.Errorf("%q is not a duration of %v or more, such as \"10s\"; \"0s\" is off", s, least)
		}
		return d, nil
	}, doc)
}

// Int creates a setting that accepts an integer that passes check.
func Int(key string, to *int, def int, check func(int) error, doc string) Setting {
	*to = def
	return Setting{Key: key, Kind: Integer, Default: strconv.Itoa(def), Doc: doc, apply: func(v any) error {
		n, err := narrow(v.(int64))
		if err == nil {
			err = check(n)
		}
		if err == nil {
			*to = n
		}
		return err
	}}
}

// Range creates a setting that accepts an integer from low to high. If zero is not "", 0 is accepted too, and zero
// describes what it means. high is math.MaxInt for no limit. The range is added to the first sentence of the
// description.
func Range[T ~int | ~uint8 | ~uint16](key string, to *T, low, high, def int, zero, doc string) Setting {
	span := fmt.Sprintf("%d to %d", low, high)
	if high == math.MaxInt {
		span = fmt.Sprintf("%d or more", low)
	}
	first, rest, more := strings.Cut(strings.TrimSuffix(doc, "."), ". ")
	problem := "%d is not " + span
	switch {
	case zero == "":
		first += ", " + span
	case low == 0:
		first += "; 0 is " + zero
	default:
		first, problem = first+", "+span+"; 0 is "+zero, problem+"; 0 is "+zero
	}
	if doc = first + "."; more {
		doc += " " + rest + "."
	}
	var n int
	s := Int(key, &n, def, func(n int) error {
		if n < low && (n != 0 || zero == "") || n > high {
			return fmt.Errorf(problem, n)
		}
		*to = T(n)
		return nil
	}, doc)
	*to = T(def)
	return s
}

// Func creates a setting that is written as a string and stored by set. def is for the help only: it must be in effect
// already.
func Func(key, def string, set func(string) error, doc string) Setting {
	return Setting{Key: key, Kind: Text, Default: quote(def), Doc: doc,
		apply: func(v any) error { return set(v.(string)) }}
}

// Bool creates a setting that is on or off.
func Bool(key string, to *bool, def bool, doc string) Setting {
	*to = def
	return Setting{Key: key, Kind: Boolean, Default: strconv.FormatBool(def), Doc: doc, apply: func(v any) error {
		*to = v.(bool)
		return nil
	}}
}

// Strings creates a setting for a list of strings, each converted by parse. The default is the empty list.
func Strings[T any](key string, to *[]T, parse func(string) (T, error), doc string) Setting {
	*to = nil
	return Setting{Key: key, Kind: Texts, Default: "[]", Doc: doc, apply: func(v any) (err error) {
		list, err := each(v, parse)
		if err == nil {
			*to = list
		}
		return err
	}}
}

// Names creates a setting for a list of names and numbers, each converted by parse.
func Names[T any](key string, to *[]T, def []string, parse func(string) (T, error), doc string) Setting {
	*to = nil
	text := make([]string, len(def))
	for i, d := range def {
		*to = append(*to, must(parse(d)))
		text[i] = quote(d)
	}
	return Setting{Key: key, Kind: Items, Default: "[" + strings.Join(text, ", ") + "]", Doc: doc,
		apply: func(v any) error {
			list, err := each(v, func(e any) (T, error) { return parse(fmt.Sprint(e)) })
			if err == nil {
				*to = list
			}
			return err
		}}
}

// Ints creates a setting for a list of integers, each converted by parse.
func Ints[T any](key string, to *[]T, def []int, parse func(int) (T, error), doc string) Setting {
	from := func(n int64) (t T, err error) {
		i, err := narrow(n)
		if err == nil {
			t, err = parse(i)
		}
		return t, err
	}
	*to = nil
	text := make([]string, len(def))
	for i, n := range def {
		*to = append(*to, must(parse(n)))
		text[i] = strconv.Itoa(n)
	}
	return Setting{Key: key, Kind: Integers, Default: "[" + strings.Join(text, ", ") + "]", Doc: doc,
		apply: func(v any) error {
			list, err := each(v, from)
			if err == nil {
				*to = list
			}
			return err
		}}
}

func narrow(n int64) (int, error) {
	if int64(int(n)) != n {
		return 0, fmt.Errorf("%d is out of range", n)
	}
	return int(n), nil
}

// must returns the default, which is a constant of the program.
func must[T any](t T, err error) T {
	if err != nil {
		panic(err)
	}
	return t
}
