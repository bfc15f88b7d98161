package manual

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// WriteBash writes the program's completion for bash: commands, flags, the values that are known, and keys and values of -set.
func (p *Program) WriteBash(w io.Writer) error {
	var names []string
	var b strings.Builder
	for _, c := range p.Commands {
		if c.Name != "" {
			names = append(names, c.Name)
		}
	}
	fn := "_rebound_" + p.Name
	fmt.Fprintf(&b, "# Completion of %s for bash, made by the program itself from its flags and settings.\n%s() {\n", p.Name, fn)
	b.WriteString(bashWords)
	fmt.Fprintf(&b, "	case $command in\n")
	for _, c := range p.Commands {
		label := c.Name
		if label == "" {
			label = `""`
		}
		fmt.Fprintf(&b, "	%s)\n", label)
		p.bashCommand(&b, &c)
		b.WriteString("		;;\n")
	}
	b.WriteString("	esac\n")
	if len(names) > 0 {
		fmt.Fprintf(&b, "	[[ -z $command && $n -eq 1 ]] && list+=\" %s\"\n", strings.Join(names, " "))
	}
	b.WriteString(bashReply)
	fmt.Fprintf(&b, "}\ncomplete -F %s %s\n", fn, p.Name)
	_, err := io.WriteString(w, b.String())
	return err
}

// bashWords splits the line up to the cursor by blanks alone: bash itself takes = and : for ends of words. cur is the word to be
// completed, previous the one before it.
const bashWords = `	local -a words
	local cur previous command="" list="" kind="" n
	read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
	[[ ${COMP_LINE:COMP_POINT-1:1} == [[:blank:]] ]] && words+=("")
	n=$((${#words[@]} - 1))
	cur=${words[n]} previous=${words[n - 1]}
	[[ $n -gt 1 && ${words[1]} != -* ]] && command=${words[1]}
	COMPREPLY=()
`

// bashReply takes from list what begins with cur, and off each what bash takes for a word of its own.
const bashReply = `	case $kind in
	file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); compopt -o filenames 2>/dev/null ;;
	folder) mapfile -t COMPREPLY < <(compgen -d -- "$cur"); compopt -o filenames 2>/dev/null ;;
	value) ;;
	esac
	[[ -n $list ]] && mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$list" -- "$cur")
	local head=${cur%"${cur##*[=:]}"} i
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$head"}
	done
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
	return 0
`

// bashCommand sets list and kind for what may stand at cur, within one command.
func (p *Program) bashCommand(b *strings.Builder, c *Command) {
	var all []string
	fmt.Fprintf(b, "		case $previous in\n")
	for _, f := range c.flags() {
		all = append(all, "-"+f.Name)
		if isBool(f) {
			continue
		}
		fmt.Fprintf(b, "		-%s)\n", f.Name)
		p.bashValue(b, f)
		b.WriteString("			;;\n")
	}
	fmt.Fprintf(b, "		*)\n			if [[ $cur == -* ]]; then list=\"%s\"\n", strings.Join(append(all, "-h"), " "))
	kind := "file"
	if c.Folders {
		kind = "folder"
	}
	fmt.Fprintf(b, "			else [[ -n $command ]] && kind=%s\n			fi ;;\n		esac\n", kind)
}

func (p *Program) bashValue(b *strings.Builder, f *flag.Flag) {
	value, _ := flag.UnquoteUsage(f)
	chooser, _ := f.Value.(interface{ Choices() []string })
	switch {
	case f.Name == "set" && p.Settings != nil:
		var keys []string
		b.WriteString("			case $cur in\n")
		for _, s := range p.Settings.Settings {
			keys = append(keys, s.Key+"=")
			var values []string
			for _, v := range s.Values() {
				values = append(values, s.Key+"="+v)
			}
			if values != nil {
				fmt.Fprintf(b, "			%s=*) list=\"%s\" ;;\n", s.Key, strings.Join(values, " "))
			}
		}
		fmt.Fprintf(b, "			*=*) kind=value ;;\n			*) list=\"%s\" ;;\n			esac\n", strings.Join(keys, " "))
	case chooser != nil && len(chooser.Choices()) > 0:
		fmt.Fprintf(b, "			list=\"%s\"\n", strings.Join(chooser.Choices(), " "))
	case value == "FILE" || value == "PATH" || value == "file" || value == "path":
		b.WriteString("			kind=file\n")
	case value == "FOLDER":
		b.WriteString("			kind=folder\n")
	default:
		b.WriteString("			kind=value\n")
	}
}
