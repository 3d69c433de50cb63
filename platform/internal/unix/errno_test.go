//go:build linux || darwin

package unix

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// more counts the numbers that only this system has.
var more int

// Quirk Q39: an interrupted call is not a loss.
func TestEveryErrorNumberHasItsKind(t *testing.T) {
	want := map[string][]unix.Errno{
		"refused":             {unix.ECONNREFUSED},
		"reset":               {unix.ECONNRESET, unix.ECONNABORTED, unix.EPIPE, unix.ENETRESET},
		"timeout":             {unix.ETIMEDOUT},
		"unreachable":         {unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN},
		"address in use":      {unix.EADDRINUSE},
		"address unavailable": {unix.EADDRNOTAVAIL},
		"too many files":      {unix.EMFILE, unix.ENFILE},
		"no memory":           {unix.ENOBUFS, unix.ENOMEM},
		"interrupted":         {unix.EINTR},
		"would block":         {unix.EAGAIN, unix.EWOULDBLOCK, unix.EINPROGRESS, unix.EALREADY},
		"permission":          {unix.EACCES, unix.EPERM},
		"unsupported":         {unix.ENOPROTOOPT, unix.EOPNOTSUPP},
		"closed":              {unix.EBADF, unix.ENOTCONN, unix.ESHUTDOWN, unix.ENOTSOCK},
		"":                    {unix.EDOM, unix.ENOENT},
	}
	seen := 0
	for kind, numbers := range want {
		for _, no := range numbers {
			wrapped := fmt.Errorf("outer: %w", &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", no)})
			require.Equal(t, kind, Kind(no), "%v", no) // S0-02
			require.Equal(t, kind, Kind(wrapped), "%v", no)
		}
		if kind != "" {
			seen += len(numbers)
		}
	}
	require.Equal(t, len(kinds)-more+1, seen, "a number without a row here (EAGAIN is EWOULDBLOCK)")
	require.Empty(t, Kind(nil))
	require.Empty(t, Kind(errors.New("no number")))
}
