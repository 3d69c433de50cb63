package wire

import (
	"encoding/hex"
	"fmt"

	"github.com/gopccl/gopccl/core/errs"
)

// ParseUUID reads the canonical 36 character form or 32 hex digits, in either
// case of letters. Anything else is an *errs.Error with code InvalidArgument.
func ParseUUID(s string) (UUID, error) {
	digits := s
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		digits = s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	var u UUID
	if len(digits) == 2*len(u) {
		if _, err := hex.Decode(u[:], []byte(digits)); err == nil {
			return u, nil
		}
	}
	return UUID{}, errs.New(errs.InvalidArgument, "parse uuid", fmt.Errorf("%q is not a uuid", cutString(s, 64)))
}
