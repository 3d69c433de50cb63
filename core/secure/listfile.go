package secure

import (
	"encoding/pem"
	"fmt"
	"io"
	"os"
)

// maxListFile bounds the file of a list: its bytes in DER, or in PEM.
const maxListFile = 2 * MaxList

// LoadList reads the revocation list that gopccl keys revoke writes, in DER or in PEM.
func LoadList(path string) (*List, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxListFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxListFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxListFile)
	}
	if b, _ := pem.Decode(text); b != nil {
		text = b.Bytes
	}
	l, err := ParseList(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}
