package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"rebound/fastpath"
)

// config is config.toml as it is written: each field's default is in defaults, its meaning in config.toml.
type config struct {
	NIC struct {
		Driver   string `toml:"driver"`
		Device   string `toml:"device"`
		Queue    int    `toml:"queue"`
		RingSize int    `toml:"ring_size"`
		Push     string `toml:"push"`
		PushMax  int    `toml:"push_max"`

		MAC           string `toml:"mac"`
		GenericXDP    bool   `toml:"generic_xdp"`
		UnsafeNoIOMMU bool   `toml:"unsafe_no_iommu"`
	} `toml:"nic"`
	Respond struct {
		Addresses  []string `toml:"addresses"`
		UDPPorts   []int    `toml:"udp_ports"`
		STAMPPorts []int    `toml:"stamp_ports"`
	} `toml:"respond"`
	Guard struct {
		Mode string `toml:"mode"`
	} `toml:"guard"`
	CPU struct {
		Cores      []int `toml:"cores"`
		Priority   int   `toml:"priority"`
		LockMemory bool  `toml:"lock_memory"`
	} `toml:"cpu"`
	Log struct {
		Level  string `toml:"level"`
		Format string `toml:"format"`
	} `toml:"log"`
	Stats struct {
		Listen   string `toml:"listen"`
		Interval string `toml:"interval"`
		Report   string `toml:"report"`

		Anonymous bool `toml:"anonymous"`
	} `toml:"stats"`
}

func defaults() config {
	var c config
	c.NIC.Driver, c.NIC.Push = "auto", "auto"
	c.Respond.Addresses = []string{}
	c.Respond.UDPPorts = []int{7}
	c.Respond.STAMPPorts = []int{}
	c.Guard.Mode = "strict"
	c.CPU.Cores = []int{}
	c.CPU.LockMemory = true
	c.Log.Level = "info"
	c.Log.Format = "text"
	c.Stats.Interval = "0s"
	return c
}

// settings is a config that was found possible, in the types that its users want.
type settings struct {
	config
	mac       [6]byte // zero for the device's own
	addresses []netip.Prefix
	udp       []uint16
	stamp     []uint16
	mode      fastpath.Mode
	level     slog.Level
	interval  time.Duration
}

// keyError is a key that cannot be used. where is "FILE:LINE" or "-set", and empty for a default.
type keyError struct {
	where, key, problem string
}

func (e *keyError) Error() string {
	switch {
	case e.where == "":
		return e.key + ": " + e.problem
	case e.key == "":
		return e.where + ": " + e.problem
	}
	return e.where + ": " + e.key + ": " + e.problem
}

// origins tells where each key was set: "respond.addresses", and "respond.addresses[1]" for an element.
type origins map[string]string

// loadConfig reads the file, where one is named, lays the -set flags over it, later ones over earlier ones, and checks
// the whole. online are the CPUs of this machine.
func loadConfig(file string, sets []string, online []int) (*settings, error) {
	c, from, err := readConfig(file, sets)
	if err != nil {
		return nil, err
	}
	return c.check(from, online)
}

func readConfig(file string, sets []string) (*config, origins, error) {
	c, from := defaults(), origins{}
	if file != "" {
		doc, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, &keyError{"-config", "", err.Error()}
		}
		if err := c.decode(file, doc, from); err != nil {
			return nil, nil, err
		}
	}
	for _, s := range sets {
		if err := c.set(s, from); err != nil {
			return nil, nil, err
		}
	}
	return &c, from, nil
}

// decode lays doc over c.
func (c *config) decode(file string, doc []byte, from origins) error {
	d := toml.NewDecoder(strings.NewReader(string(doc))).DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return describe(err, func(line int) string { return fmt.Sprintf("%s:%d", file, line) })
	}
	locate(doc, func(key string, line int) { from[key] = fmt.Sprintf("%s:%d", file, line) })
	return nil
}

// set lays one KEY=VALUE over c. A VALUE that is not TOML is a string, and so are the elements of a list; a single one
// will do where a list is wanted.
func (c *config) set(s string, from origins) error {
	key, value, ok := strings.Cut(s, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	fail := func(problem string) error { return &keyError{"-set", key, problem} }
	if !ok {
		return fail("wants KEY=VALUE")
	}
	section, name, ok := strings.Cut(key, ".")
	field, known := fieldOf(key)
	if !ok || !known {
		return fail("unknown key")
	}
	if field.Kind() == reflect.Slice {
		value = "[" + strings.Join(elements(value, field.Elem()), ", ") + "]"
	} else {
		value = literal(value, field)
	}
	if !isTOML(value) {
		return fail(fmt.Sprintf("%q is not a value", value))
	}
	err := toml.Unmarshal([]byte("["+section+"]\n"+name+" = "+value), c)
	if err != nil {
		return describe(err, func(int) string { return "-set" })
	}
	for k := range from {
		if strings.HasPrefix(k, key+"[") {
			delete(from, k)
		}
	}
	from[key] = "-set"
	return nil
}

// literal writes a value in TOML: a bare word becomes a string.
func literal(v string, t reflect.Type) string {
	quoted := strings.HasPrefix(v, `"`) || strings.HasPrefix(v, "'")
	if t.Kind() == reflect.String && !quoted || !isTOML(v) {
		return quote(v)
	}
	return v
}

// isTOML reports whether v is one value in TOML syntax, and nothing more.
func isTOML(v string) bool {
	var doc map[string]any
	return toml.Unmarshal([]byte("v = "+v), &doc) == nil && len(doc) == 1
}

func quote(s string) string {
	b, err := toml.Marshal(map[string]string{"v": s})
	if err != nil { // not UTF-8
		return strconv.QuoteToASCII(s)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(b), "v = "))
}

func elements(v string, t reflect.Type) []string {
	inner, open := strings.CutPrefix(v, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !open || !closed {
		return []string{literal(v, t)}
	}
	if isTOML(v) {
		return []string{inner}
	}
	var out []string
	for e := range strings.SplitSeq(inner, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, literal(e, t))
		}
	}
	return out
}

// fieldOf returns the type behind "section.key".
func fieldOf(key string) (reflect.Type, bool) {
	t := reflect.TypeFor[config]()
	for part := range strings.SplitSeq(key, ".") {
		if t.Kind() != reflect.Struct {
			return nil, false
		}
		i := slices.IndexFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Tag.Get("toml") == part })
		if i < 0 {
			return nil, false
		}
		t = t.Field(i).Type
	}
	return t, t.Kind() != reflect.Struct
}

var (
	mismatch  = regexp.MustCompile(`^cannot decode TOML (.+?) into `)
	misplaced = regexp.MustCompile(`^cannot store (an? .*table) in a `)
)

// describe turns what the decoder says into one line in the words of the file's reader.
func describe(err error, where func(line int) string) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		e := &strict.Errors[0]
		line, _ := e.Position()
		problem := "unknown key"
		if strings.Contains(e.Error(), "table") {
			problem = "unknown section"
		}
		return &keyError{where(line), strings.Join(e.Key(), "."), problem}
	}
	var e *toml.DecodeError
	if !errors.As(err, &e) {
		return &keyError{where(1), "", err.Error()}
	}
	line, _ := e.Position()
	key := strings.Join(e.Key(), ".")
	problem := strings.TrimPrefix(e.Error(), "toml: ")
	if m := mismatch.FindStringSubmatch(problem); m != nil {
		problem = fmt.Sprintf("is %s, must be %s", article(m[1]), wanted(key))
	} else if m := misplaced.FindStringSubmatch(problem); m != nil {
		problem = fmt.Sprintf("is %s, must be %s", m[1], wanted(key))
	}
	return &keyError{where(line), key, problem}
}

func wanted(key string) string {
	t, ok := fieldOf(key)
	switch {
	case !ok:
		return "a section"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return "a list of strings"
	case t.Kind() == reflect.Slice:
		return "a list of integers"
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "an integer"
}

func article(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// locate calls found with every key of doc, and with every element of its lists, and the line it is on.
func locate(doc []byte, found func(key string, line int)) {
	var p unstable.Parser
	p.Reset(doc)
	path := func(prefix string, it unstable.Iterator) string {
		for it.Next() {
			prefix += "." + strings.ToLower(string(it.Node().Data))
		}
		return strings.TrimPrefix(prefix, ".")
	}
	line := func(n *unstable.Node) int { return p.Shape(n.Raw).Start.Line }
	var value func(prefix string, n *unstable.Node)
	value = func(prefix string, n *unstable.Node) {
		it := n.Key()
		it.Next()
		first := it.Node()
		key := path(prefix, n.Key())
		found(key, line(first))
		switch v := n.Value(); v.Kind {
		case unstable.InlineTable:
			for c := v.Children(); c.Next(); {
				value(key, c.Node())
			}
		case unstable.Array:
			i := 0
			for c := v.Children(); c.Next(); i++ {
				if c.Node().Raw.Length > 0 {
					found(fmt.Sprintf("%s[%d]", key, i), line(c.Node()))
				}
			}
		}
	}
	section := ""
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			section = path("", e.Key())
		case unstable.KeyValue:
			value(section, e)
		}
	}
}
