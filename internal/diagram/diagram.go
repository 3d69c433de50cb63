// Package diagram reads the state diagrams that are drawn in package comments,
// so that tests can compare them with the tables of the code.
package diagram

import (
	"regexp"
	"strings"
)

// Edge is one arrow: what leads from one state to another.
type Edge struct{ From, Label, To string }

var arrow = regexp.MustCompile(`--([^->]+)-*-> (\w+)`)

// Read returns the arrows of all diagrams in the comments of a Go source. An
// arrow is "A --label--> B"; arrows in one line form a chain, and one that
// begins with a plus leaves the state whose name is above it, at the other end
// of its line of bars:
//
//	Idle --vote--> Voting --all--> Idle
//	 |
//	 +--call--> Busy
//
// From is "?" where nothing is above. Only ASCII is understood.
func Read(source string) (edges []Edge) {
	lines := strings.Split(source, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimPrefix(lines[i], "//"), "\t")
	}
	for row, line := range lines {
		for _, m := range arrow.FindAllStringSubmatchIndex(line, -1) {
			before := strings.TrimRight(line[:m[0]], " -")
			from := "?"
			if strings.HasSuffix(before, "+") {
				from = above(lines[:row], len(before)-1)
			} else if w := word(before, len(before)-1); w != "" {
				from = w
			}
			edges = append(edges, Edge{from, strings.TrimSpace(line[m[2]:m[3]]), line[m[4]:m[5]]})
		}
	}
	return edges
}

// above follows the bars in a column upwards to a name.
func above(lines []string, column int) string {
	for row := len(lines) - 1; row >= 0 && column < len(lines[row]); row-- {
		if c := lines[row][column]; c == '|' || c == '+' {
			continue
		}
		if w := word(lines[row], column); w != "" {
			return w
		}
		break
	}
	return "?"
}

// word returns the name that covers a column, "" if there is none.
func word(line string, column int) string {
	letter := func(i int) bool {
		return i >= 0 && i < len(line) && regexp.MustCompile(`\w`).MatchString(line[i:i+1])
	}
	if !letter(column) {
		return ""
	}
	from, to := column, column+1
	for letter(from - 1) {
		from--
	}
	for letter(to) {
		to++
	}
	return line[from:to]
}
