//go:build !unix && !windows

package transport

import (
	"errors"
	"net"
)

// A socket of this system cannot be asked without waiting.
func look(*net.TCPConn, bool) (int, error) { return 0, errors.ErrUnsupported }
