package ptxtest

import "fmt"

// syntaxError is what the parser panics with and ModuleLoad recovers.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

func fail(line int, format string, args ...any) {
	panic(&syntaxError{line, fmt.Sprintf(format, args...)})
}

// token is a word (letters, digits and any of _$%. in it), a string with its
// quotes, or one character of punctuation. The last token is "".
type token struct {
	text string
	line int
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '_' || c == '$' || c == '%' || c == '.'
}

// lex cuts a module into tokens.
func lex(src string) []token {
	tokens := make([]token, 0, len(src)/5+1)
	line := 1
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == 0 && i == len(src)-1: // a C string's end
			i++
		case c == '/' && i+1 < len(src) && src[i+1] == '/':
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case c == '/' && i+1 < len(src) && src[i+1] == '*':
			start := line
			for i += 2; ; i++ {
				if i+1 >= len(src) {
					fail(start, "comment without end")
				}
				if src[i] == '*' && src[i+1] == '/' {
					i += 2
					break
				}
				if src[i] == '\n' {
					line++
				}
			}
		case c == '"':
			j := i + 1
			for j < len(src) && src[j] != '"' && src[j] != '\n' {
				j++
			}
			if j == len(src) || src[j] == '\n' {
				fail(line, "string without end")
			}
			tokens = append(tokens, token{src[i : j+1], line})
			i = j + 1
		case wordByte(c):
			j := i + 1
			for j < len(src) && wordByte(src[j]) {
				j++
			}
			tokens = append(tokens, token{src[i:j], line})
			i = j
		case c > ' ' && c < 0x7f:
			tokens = append(tokens, token{src[i : i+1], line})
			i++
		default:
			fail(line, "unexpected byte %#02x", c)
		}
	}
	return append(tokens, token{"", line})
}
