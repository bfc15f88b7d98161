package setting

import (
	"fmt"
	"io"
	"strings"

	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// Limits on files and values. The parser recurses for each level of nesting and copies a dotted key for each of its
// parts, so input of a few megabytes could exhaust the memory. config.toml with all its comments has 20 KiB.
const (
	maxFile    = 1 << 20 // bytes
	maxNesting = 16      // brackets and braces
	maxParts   = 16      // of a dotted key
)

// readFile reads a file of up to maxFile bytes.
func readFile(name string) (string, error) {
	f, err := atomicfile.Input(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	return string(doc), err
}

// checkBounds returns which limit text exceeds, and on which line.
func checkBounds(text string) (line int, problem string) {
	if len(text) > maxFile {
		return 1 + strings.Count(text[:maxFile], "\n"), fmt.Sprintf("longer than %d KiB", maxFile>>10)
	}
	depth, dots := 0, 0
	scan(text, func(_, at int, c byte) bool {
		switch line = at; c {
		case '[', '{':
			depth, dots = depth+1, 0
		case ']', '}':
			depth = max(0, depth-1)
		case '.':
			dots++
		case '\n', '=', ',':
			dots = 0
		}
		switch {
		case depth > maxNesting:
			problem = fmt.Sprintf("nested more than %d levels deep", maxNesting)
		case dots >= maxParts:
			problem = fmt.Sprintf("a key of more than %d parts", maxParts)
		}
		return problem == ""
	})
	return line, problem
}

// scan calls token for each byte of TOML outside comments and strings, with its index and line, until token returns
// false. For a string it passes the opening quote only.
func scan(text string, token func(i, line int, c byte) bool) {
	line := 1
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '#' && !token(i, line, c) {
			return
		}
		end := i
		switch c {
		case '\n':
			line++
		case '#':
			line, _, _ := strings.Cut(text[i:], "\n")
			end = i + len(line) - 1
		case '"', '\'':
			end = i + stringLength(text[i:]) - 1
			line += strings.Count(text[i:end+1], "\n")
		}
		i = end
	}
}

// stringLength returns the length, with quotes, of the string at the start of text. An unclosed string ends with its
// line, or with the text if it may have several lines.
func stringLength(text string) int {
	quote, many := text[:1], false
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text, triple) {
		quote, many = triple, true
	}
	for i := len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case text[i] == '\n' && !many:
			return i
		case strings.HasPrefix(text[i:], quote):
			for i += len(quote); many && i < len(text) && text[i] == quote[0]; i++ { // quotes before the closing ones
			}
			return i
		}
	}
	return len(text)
}
