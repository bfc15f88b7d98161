package manual

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
)

// CompleteCommand is the hidden command that the completion scripts call. Its arguments are the words of the command
// line up to the cursor, without the program.
const CompleteCommand = "__complete"

// Shells lists the shells that WriteCompletion supports.
var Shells = []string{"bash", "zsh", "fish"}

// ErrShell is returned for a shell without completion.
var ErrShell = errors.New("no completion for")

// WriteCompletion writes the program's completion script for a shell. The script gets its candidates from the program
// itself, called by the name that was typed, so it never goes out of date.
func (p *Program) WriteCompletion(w io.Writer, shell string) error {
	script, ok := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[shell]
	if !ok {
		return fmt.Errorf("%w %q: want %s", ErrShell, shell, strings.Join(Shells, ", "))
	}
	_, err := io.WriteString(w, strings.ReplaceAll(script, "NAME", p.Name))
	return err
}

// Complete writes the candidates for the last word, one per line, with a description after a tab. A last line ":file"
// or ":folder" makes the shell complete paths as well.
func (p *Program) Complete(w io.Writer, words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}
	cur := words[len(words)-1]
	list, kind := p.candidates(words[:len(words)-1], cur)
	var b strings.Builder
	for _, c := range list {
		if strings.HasPrefix(c.word, cur) {
			fmt.Fprintf(&b, "%s\t%s\n", c.word, c.doc)
		}
	}
	if kind != "" {
		fmt.Fprintf(&b, ":%s\n", kind)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type candidate struct{ word, doc string }

func candidates(words []string) (list []candidate) {
	for _, w := range words {
		list = append(list, candidate{word: w})
	}
	return list
}

// candidates returns the candidates for the word cur after the words before, and the kind of paths that are allowed, if
// any.
func (p *Program) candidates(before []string, cur string) (list []candidate, kind string) {
	command := p.command("")
	if len(before) > 0 {
		if c := p.command(before[0]); c != nil && before[0] != "" {
			command, before = c, before[1:]
		}
	} else if !strings.HasPrefix(cur, "-") {
		for _, c := range p.Commands {
			if c.Name != "" {
				list = append(list, candidate{c.Name, summary(c.Doc)})
			}
		}
		if command == nil || len(p.Commands) > 1 {
			return list, ""
		}
	}
	if command == nil {
		return nil, ""
	}
	if n := len(before); n > 0 && strings.HasPrefix(before[n-1], "-") && command.Flags != nil {
		if f := command.Flags.Lookup(strings.TrimLeft(before[n-1], "-")); f != nil && !isBool(f) {
			return p.values(f, cur)
		}
	}
	switch {
	case strings.HasPrefix(cur, "-"):
		dashes := cur[:min(len(cur)-len(strings.TrimLeft(cur, "-")), 2)]
		for _, f := range command.flags() {
			_, usage := flag.UnquoteUsage(f)
			list = append(list, candidate{dashes + f.Name, summary(usage)})
		}
		return append(list, candidate{dashes + "h", "show help"}), ""
	case command.Words != nil:
		return candidates(command.Words), ""
	case command.Folders:
		return nil, "folder"
	}
	return nil, "file"
}

// values returns the candidates for a flag's value.
func (p *Program) values(f *flag.Flag, cur string) (list []candidate, kind string) {
	placeholder, _ := flag.UnquoteUsage(f)
	chooser, _ := f.Value.(interface{ Choices() []string })
	switch {
	case f.Name == "set" && p.Settings != nil:
		return p.setting(cur)
	case p.Values[f.Name] != nil:
		return candidates(p.Values[f.Name]), ""
	case chooser != nil && len(chooser.Choices()) > 0:
		return candidates(chooser.Choices()), ""
	}
	switch strings.ToUpper(placeholder) {
	case "FILE", "PATH":
		return nil, "file"
	case "FOLDER":
		return nil, "folder"
	case "INTERFACE":
		return candidates(interfaces()), ""
	}
	return nil, ""
}

// setting completes KEY=VALUE.
func (p *Program) setting(cur string) (list []candidate, kind string) {
	key, _, typed := strings.Cut(cur, "=")
	for _, s := range p.Settings.Settings {
		switch {
		case !typed:
			list = append(list, candidate{s.Key + "=", summary(s.Doc)})
		case s.Key != key:
		case key == "nic.device":
			for _, name := range interfaces() {
				list = append(list, candidate{word: key + "=" + name})
			}
		default:
			for _, v := range s.Values() {
				list = append(list, candidate{word: key + "=" + v})
			}
		}
	}
	return list, ""
}

// interfaces returns the interfaces of this network namespace, without loopback.
func interfaces() (names []string) {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}

// summary returns the start of a description, up to its first full stop, colon or semicolon.
func summary(doc string) string {
	doc = strings.ReplaceAll(strings.ReplaceAll(doc, "\n", " "), "`", "")
	for _, end := range []string{". ", ": ", "; ", " ("} {
		doc, _, _ = strings.Cut(doc, end)
	}
	return strings.TrimRight(strings.TrimSpace(doc), ".:")
}

// bashScript splits the line by blanks alone, and removes from each reply the part that bash takes for an earlier word:
// it splits at = and : as well.
const bashScript = `# Completion of NAME for bash. Load it: source <(NAME completion bash)
_rebound_NAME() {
	local -a words lines
	local cur head i kind=
	read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
	[[ ${COMP_LINE:COMP_POINT-1:1} == [[:blank:]] ]] && words+=("")
	cur=${words[${#words[@]} - 1]}
	COMPREPLY=()
	mapfile -t lines < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
	for i in "${lines[@]}"; do
		case $i in
		:*) kind=${i#:} ;;
		*) COMPREPLY+=("${i%%$'\t'*}") ;;
		esac
	done
	case $kind in
	file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); compopt -o filenames 2>/dev/null ;;
	folder) mapfile -t COMPREPLY < <(compgen -d -- "$cur"); compopt -o filenames 2>/dev/null ;;
	esac
	head=${cur%"${cur##*[=:]}"}
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$head"}
	done
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
	return 0
}
complete -F _rebound_NAME NAME
`

const zshScript = `#compdef NAME
# Completion of NAME for zsh. Load it: source <(NAME completion zsh), or save it as _NAME in a folder of $fpath
_rebound_NAME() {
	local -a lines plain
	local line kind=
	lines=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	for line in $lines; do
		case $line in
		:*) kind=${line#:} ;;
		*=$'\t'*) compadd -S '' -- "${line%%$'\t'*}" ;;
		*) plain+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
		esac
	done
	(( ${#plain} )) && _describe -o NAME plain
	case $kind in
	file) _files ;;
	folder) _files -/ ;;
	esac
}
if [[ $funcstack[1] == _NAME ]]; then _rebound_NAME "$@"; else compdef _rebound_NAME NAME; fi
`

const fishScript = `# Completion of NAME for fish. Load it: NAME completion fish | source
function __rebound_NAME
	set -l words (commandline -opc) (commandline -ct)
	set -l lines ($words[1] __complete $words[2..-1] 2>/dev/null)
	for line in $lines
		switch $line
			case ':file'
				__fish_complete_path (commandline -ct)
			case ':folder'
				__fish_complete_directories (commandline -ct)
			case '*'
				echo $line
		end
	end
end
complete -c NAME -f -a '(__rebound_NAME)'
`
