package lead

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
)

// The file is a line of magic, the digest of the rest in hexadecimal, the term, and what
// was committed last.
const magic = "gopccl master state 1\n"

func encode(term uint32, kept []byte) []byte {
	return sealed(append(fmt.Appendf(nil, "term %d\n", term), kept...))
}

// sealed puts the magic and the digest in front of body.
func sealed(body []byte) []byte {
	return append(fmt.Appendf([]byte(magic), "%x\n", sha256.Sum256(body)), body...)
}

// decode trusts nothing: a disk may have lost the end, and an operator may have named
// the file of another program.
func decode(b []byte) (term uint32, kept []byte, err error) {
	rest, ours := bytes.CutPrefix(b, []byte(magic))
	if !ours {
		return 0, nil, errors.New("it is not the state of a master, or of a later version")
	}
	sum, body, ok := bytes.Cut(rest, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%x", sha256.Sum256(body)) {
		return 0, nil, errors.New("it is damaged: the digest differs")
	}
	line, kept, _ := bytes.Cut(body, []byte("\n"))
	digits, ok := bytes.CutPrefix(line, []byte("term "))
	n, err := strconv.ParseUint(string(digits), 10, 32)
	if !ok || err != nil || n > MaxTerm {
		return 0, nil, fmt.Errorf("it is damaged: %.40q is not a term", line)
	}
	return uint32(n), kept, nil
}
