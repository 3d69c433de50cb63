package guard

import (
	"encoding/pem"
	"fmt"
	"io"
	"os"

	"github.com/gopccl/gopccl/core/secure"
)

// maxListFile bounds the file of a list: its bytes in DER, or in PEM.
const maxListFile = 2 * secure.MaxList

// readList reads the revocation list that gopccl keys revoke writes.
func readList(path string) (*secure.List, error) {
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
	l, err := secure.ParseList(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}
