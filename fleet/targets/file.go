package targets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Limits for external input.
const (
	maxFile    = 16 << 20 // bytes
	maxTargets = 100_000
	maxLabels  = 1_000_000 // of all targets together: groups and aliases multiply them
)

// parseList parses a list of targets, one per line, each followed by labels: "stamp:10.0.0.2 site=ams rack=12". #
// starts a comment. name is for errors, which give the line.
func (d Defaults) parseList(name string, text []byte) ([]Target, error) {
	var out []Target
	number := 0
	for line := range bytes.Lines(text) {
		number++
		at := fmt.Sprintf("%s:%d", name, number)
		content, _, _ := strings.Cut(string(line), "#")
		f := strings.Fields(content)
		if len(f) == 0 {
			continue
		}
		t, err := d.parse(f[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		for _, pair := range f[1:] {
			k, v, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, fmt.Errorf("%s: %q after the target: want LABEL=VALUE", at, pair)
			}
			if err := t.setLabel(k, v); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
		if err := errors.Join(t.portless(f[0]), t.checkLabels()); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if out = append(out, d.complete(t)); len(out) > maxTargets {
			return nil, fmt.Errorf("%s: more than %d targets", at, maxTargets)
		}
	}
	return out, nil
}

// entry is a group's target with its line.
type entry struct {
	text string
	line int
}

// group is the common structure of both file_sd formats: targets that share labels.
type group struct {
	targets []entry
	labels  []pair
}

type pair struct {
	key, value string
	line       int
}

// parseFileSD parses a file of Prometheus' file_sd: a list of groups, each with "targets", strings in the format of
// Parse, and "labels"; in JSON if the name ends in .json, in YAML if it ends in .yml or .yaml. As in Prometheus, any
// other key is an error. Errors give the line.
func (d Defaults) parseFileSD(name string, text []byte) ([]Target, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: longer than %d MiB", name, maxFile>>20)
	}
	parse := parseYAML
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".json":
		parse = parseJSON
	case ".yml", ".yaml":
	default:
		return nil, fmt.Errorf("%s: its name ends in %q: want .json, .yml or .yaml", name, ext)
	}
	groups, line, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, max(line, 1), err)
	}
	var out []Target
	labels := 0
	for _, g := range groups {
		for _, e := range g.targets {
			at := fmt.Sprintf("%s:%d", name, e.line)
			t, err := d.parse(e.text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			if labels += len(g.labels); labels > maxLabels {
				return nil, fmt.Errorf("%s: more than %d labels of all targets", at, maxLabels)
			}
			for _, l := range g.labels {
				if err := t.setLabel(l.key, l.value); err != nil && !errors.As(err, new(unknownLabel)) {
					return nil, fmt.Errorf("%s:%d: %w", name, l.line, err)
				}
			}
			if err := t.checkLabels(); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			if out = append(out, d.complete(t)); len(out) > maxTargets {
				return nil, fmt.Errorf("%s: more than %d targets", at, maxTargets)
			}
		}
	}
	return out, nil
}

const wantGroups = `want a list of groups, like [{"targets": ["10.0.0.2"], "labels": {"site": "ams"}}]`

// parseYAML parses groups by their nodes, which have line numbers.
func parseYAML(text []byte) (groups []group, line int, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, yamlLine(err), errors.New(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: "))
	}
	if len(doc.Content) == 0 { // only comments
		return nil, 0, nil
	}
	list := deref(doc.Content[0])
	if list.Kind == yaml.ScalarNode && list.Tag == "!!null" {
		return nil, 0, nil
	}
	if list.Kind != yaml.SequenceNode {
		return nil, list.Line, errors.New(wantGroups)
	}
	seen, labels := 0, 0
	for _, n := range list.Content {
		n = deref(n)
		if n.Kind != yaml.MappingNode {
			return nil, n.Line, fmt.Errorf("a group is %s; %s", kindOf(n), wantGroups)
		}
		var g group
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := deref(n.Content[i]), deref(n.Content[i+1])
			switch key.Value {
			case "targets":
				if value.Kind != yaml.SequenceNode {
					return nil, value.Line, fmt.Errorf("targets is %s, must be a list of strings", kindOf(value))
				}
				for _, e := range value.Content {
					if e = deref(e); e.Kind != yaml.ScalarNode {
						return nil, e.Line, fmt.Errorf("a target is %s, must be a string", kindOf(e))
					}
					if seen++; seen > maxTargets { // aliases can expand a small file
						return nil, e.Line, fmt.Errorf("more than %d targets", maxTargets)
					}
					g.targets = append(g.targets, entry{e.Value, e.Line})
				}
			case "labels":
				if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
					continue
				}
				if value.Kind != yaml.MappingNode {
					return nil, value.Line, fmt.Errorf("labels is %s, must be a mapping of strings", kindOf(value))
				}
				if labels += len(value.Content) / 2; labels > maxLabels {
					return nil, value.Line, fmt.Errorf("more than %d labels", maxLabels)
				}
				for j := 0; j+1 < len(value.Content); j += 2 {
					k, v := deref(value.Content[j]), deref(value.Content[j+1])
					if k.Kind != yaml.ScalarNode || v.Kind != yaml.ScalarNode {
						return nil, k.Line, fmt.Errorf("label %q is %s, must be a string", k.Value, kindOf(v))
					}
					g.labels = append(g.labels, pair{k.Value, v.Value, k.Line})
				}
			default:
				return nil, key.Line, fmt.Errorf("unknown key %q: a group has targets and labels", key.Value)
			}
		}
		groups = append(groups, g)
	}
	return groups, 0, nil
}

func deref(n *yaml.Node) *yaml.Node {
	for range 10 {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return n
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return fmt.Sprintf("%q", n.Value)
	}
	return "something else"
}

// yamlLine extracts the line number from the text of the library's errors.
func yamlLine(err error) int {
	_, after, _ := strings.Cut(err.Error(), "line ")
	n := 0
	for _, c := range after {
		if c < '0' || c > '9' || n > maxFile {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// parseJSON parses groups token by token, so that each target has its line number.
func parseJSON(text []byte) (groups []group, line int, err error) {
	d := &tokens{Decoder: json.NewDecoder(bytes.NewReader(text)), text: text, line: 1}
	err = d.list(func() error {
		var g group
		err := d.object(func(key string) error {
			switch key {
			case "targets":
				return d.list(func() error {
					s, err := d.string("a target")
					g.targets = append(g.targets, entry{s, d.line})
					return err
				})
			case "labels":
				return d.object(func(k string) error {
					at := d.line
					v, err := d.string("label " + k)
					g.labels = append(g.labels, pair{k, v, at})
					return err
				})
			}
			return fmt.Errorf("unknown key %q: a group has targets and labels", key)
		})
		groups = append(groups, g)
		return err
	})
	if err == nil {
		if _, more := d.next(); more != io.EOF {
			err = errors.New("something follows the list of groups")
		}
	}
	switch {
	case err == io.EOF && len(bytes.TrimSpace(text)) == 0:
		err = errors.New("it is empty; " + wantGroups)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it ends in the middle")
	}
	return groups, d.line, err
}

// tokens is a JSON decoder with line numbers.
type tokens struct {
	*json.Decoder
	text []byte
	at   int
	line int
}

func (d *tokens) next() (json.Token, error) {
	t, err := d.Token()
	to := min(int(d.InputOffset()), len(d.text))
	if errors.Is(err, io.EOF) {
		to = len(d.text)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		to = min(int(syntax.Offset), len(d.text))
	}
	if to > d.at {
		d.line += bytes.Count(d.text[d.at:to], []byte{'\n'})
		d.at = to
	}
	return t, err
}

func (d *tokens) open(want json.Delim) error {
	t, err := d.next()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("found %s where %q should be; %s", describe(t), want.String(), wantGroups)
	}
	return nil
}

func (d *tokens) list(element func() error) error {
	if err := d.open('['); err != nil {
		return err
	}
	for d.More() {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := d.next()
	return err
}

func (d *tokens) object(member func(key string) error) error {
	if err := d.open('{'); err != nil {
		return err
	}
	for d.More() {
		t, err := d.next()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := d.next()
	return err
}

func (d *tokens) string(what string) (string, error) {
	t, err := d.next()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%s is %s, must be a string", what, describe(t))
	}
	return s, nil
}

func describe(t json.Token) string {
	switch v := t.(type) {
	case json.Delim:
		return fmt.Sprintf("%q", v.String())
	case string:
		return fmt.Sprintf("the string %q", v)
	case nil:
		return "null"
	}
	return fmt.Sprint(t)
}
